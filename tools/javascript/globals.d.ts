// Properties of the page's window: for the benchmarks, and for requests sent before the scripts were loaded.

interface Window {
  Plotly: any;
  ddpDrawLog: Record<string, any>[];
  ddpEarlyRows?: Promise<Response> | null;
  ddpEarlySummary?: Promise<Response> | null;
  ddpLastDrawn?: Record<string, any>;
  ddpStats: { opens: number; messages: number; bytes: number };
  ddpTimesFrames?: boolean;
}
