import { Goodput } from "./goodput";
import { Happened } from "./happened";
import { Now } from "./now";
import { Timeline } from "./timeline";
import { WorkerGrid } from "./worker_grid";

export function Overview() {
  return (
    <>
      <Now />
      <Timeline />
      <div class="columns">
        <div class="column">
          <WorkerGrid />
          <Goodput />
        </div>
        <Happened />
      </div>
    </>
  );
}
