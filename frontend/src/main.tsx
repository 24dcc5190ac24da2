import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { App } from "./app";
import { listen } from "./connection";
import type { Messages } from "./model";
import { EventReader } from "./server_events";
import { store } from "./store";
import { show } from "./theme";

show();
// A report that was written as one file has in it what a server would tell.
const told = document.getElementById("told")?.textContent;
if (told) {
  for (const { kind, data } of new EventReader().read(told)) store.take(kind as keyof Messages, JSON.parse(data));
  store.connect({ state: "over" });
}
render(<App />, document.getElementById("page")!);
if (!told) void listen();
