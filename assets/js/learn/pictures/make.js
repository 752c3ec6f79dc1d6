// Each kind of picture that a lesson can have.

import { CurvePicture, NumberPicture } from "../pictures.js";
import { BarsPicture } from "./bars.js";
import { InstrumentPicture } from "./instrument.js";
import { WaterfallPicture } from "./waterfall.js";

/**
 * @param {any} about
 * @param {any} prediction what was predicted, for a curve
 * @param {(chart: any) => void} onVisible a chart has come into sight
 */
export function makePicture(about, prediction, onVisible) {
  if (about.curve) return new CurvePicture(about, prediction, onVisible);
  if (about.bars) return new BarsPicture(about);
  if (about.waterfall) return new WaterfallPicture(about);
  return about.instrument ? new InstrumentPicture(about) : new NumberPicture(about);
}
