import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { App } from "./app";
import { listen } from "./connection";
import { show } from "./theme";

show();
render(<App />, document.getElementById("page")!);
void listen();
