// @ts-nocheck: the inputs of the kinds of models have no common type.
// try.html: a model and everything it needs in one file, which runs without a server.

import { Answer } from "./answers.js";
import { INPUTS } from "./inputs.js";
import { el, setText, show, bytesOf, showText } from "../../shared/dom.js";
import { LocalModel } from "./local_model.js";
import { Writer } from "./writer.js";

/** The bytes that an element of the page holds as base64, unpacked. */
async function bytesIn(id) {
  const packed = bytesOf(document.getElementById(id).textContent);
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(unpacked).arrayBuffer());
}

/** Returns a function that runs the model with onnxruntime-web, on one thread of the processor. */
async function startRuntime(isText) {
  const code = new Blob([await bytesIn("runtime")], { type: "text/javascript" });
  const ort = await import(URL.createObjectURL(code));
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = (await bytesIn("runtime-wasm")).buffer;
  const session = await ort.InferenceSession.create(await bytesIn("model"), { executionProviders: ["wasm"] });
  return async (values, shape) => {
    const data = isText ? BigInt64Array.from(values, BigInt) : Float32Array.from(values);
    const outputs = await session.run({ input: new ort.Tensor(isText ? "int64" : "float32", data, shape) });
    return { data: outputs.scores.data };
  };
}

async function open() {
  const container = document.getElementById("try");
  const text = el("p", { class: "ddp-empty", role: "status" }, "Starting the model …");
  const failure = el("p", { class: "ddp-try-failure", role: "alert", hidden: true });
  const body = el("div", { class: "ddp-try-body" });
  container.append(text, failure, body);
  try {
    const metadata = JSON.parse(document.getElementById("about").textContent);
    const model = new LocalModel(metadata, await startRuntime(metadata.input.kind === "text"));
    window.ddpTry = { model, startedAfterMs: performance.now() };
    const sources = [{ model, step: null, name: "the model" }];
    if (metadata.task === "language_modelling") body.append(new Writer(metadata, () => sources).element);
    else build(body, model, metadata, failure);
    show(text, false);
  } catch (error) {
    setText(text, `The model cannot run in this browser: ${error.message}`);
  }
}

function build(body, model, metadata, failure) {
  const answer = new Answer();
  let newest = 0;
  const ask = async () => {
    newest += 1;
    const question = newest;
    const inputs = input.input();
    show(failure, false);
    if (inputs === null) {
      answer.clear("The answer appears here, as soon as there is an input.");
      return;
    }
    try {
      const result = await model.predict(inputs);
      if (question === newest) answer.update(result);
    } catch (error) {
      showText(failure, error.message);
    }
  };
  const input = new INPUTS[metadata.input.kind](metadata, ask);
  input.variations?.remove(); // they are made on the server
  body.append(el("div", { class: "ddp-try-pair" }, el("div", {}, input, answer.seen), answer));
  ask();
}

open();
