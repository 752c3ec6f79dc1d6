// Cards of ranks.

/**
 * Removes the entries of ranks that no longer exist from a map, and returns them.
 * @template Card
 * @param {Map<number, Card>} cards
 * @param {number} numRanks
 * @returns {Card[]}
 */
export function dropBeyond(cards, numRanks) {
  const gone = [...cards].filter(([rank]) => rank >= numRanks);
  for (const [rank] of gone) cards.delete(rank);
  return gone.map(([, card]) => card);
}
