// Creates the pictures of a lesson by their kind.

import { CurvePicture, NumberPicture } from "../pictures.js";
import { BarsPicture } from "./bars.js";
import { InstrumentPicture } from "./instrument.js";
import { WaterfallPicture } from "./waterfall.js";

/**
 * @param {any} about
 * @param {any} prediction the user's prediction, for a curve
 * @param {(chart: any) => void} onVisible called when a chart becomes visible
 */
export function makePicture(about, prediction, onVisible) {
  if (about.curve) return new CurvePicture(about, prediction, onVisible);
  if (about.bars) return new BarsPicture(about);
  if (about.waterfall) return new WaterfallPicture(about);
  return about.instrument ? new InstrumentPicture(about) : new NumberPicture(about);
}
