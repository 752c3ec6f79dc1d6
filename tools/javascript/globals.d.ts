// What the page keeps at its window: for the benchmarks, and for what was asked before the scripts were there.

interface Window {
  Plotly: any;
  ddpDrawLog: Record<string, any>[];
  ddpEarlyRows?: Promise<Response> | null;
  ddpEarlySummary?: Promise<Response> | null;
  ddpLastDrawn?: Record<string, any>;
  ddpStats: { opens: number; messages: number; bytes: number };
  ddpTimesFrames?: boolean;
}
