import { Goodput } from "./goodput";
import { Happened } from "./happened";
import { Now } from "./now";
import { Timeline } from "./timeline";
import { useStore } from "../store";
import { WorkerGrid } from "./worker_grid";

export function Overview() {
  const { job } = useStore("job");
  return (
    <>
      <Now />
      <Timeline />
      <div class="columns">
        <div class="column">
          {!job?.is_journal && <WorkerGrid />}
          <Goodput />
        </div>
        <Happened />
      </div>
    </>
  );
}
