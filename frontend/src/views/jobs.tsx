import { useEffect, useState } from "preact/hooks";
import { askJson, Refused } from "../connection";
import type { ListedJob } from "../model";
import { store } from "../store";
import { count, duration, moment } from "../words";

const AGAIN_MS = 5000;
const PILLS: Record<string, string> = { running: "", succeeded: "", failed: "job-failed", "not formed": "job-failed" };

/** What runs on this machine, and what has ended, as `holdfast jobs` lists it. */
export function Jobs() {
  const { jobs, problem } = useJobs();
  return (
    <section class="card jobs" aria-labelledby="jobs-title">
      <div class="head"><h2 id="jobs-title">Jobs on this machine</h2></div>
      {problem && <p class="problem">{problem}</p>}
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of jobs">
        <table data-test="jobs">
          <thead><tr><th>Job</th><th>State</th><th class="spare">Started</th><th>Time</th><th class="spare">Nodes</th><th class="spare">Ranks</th><th class="spare">End</th></tr></thead>
          <tbody>{jobs?.map((job) => <Row key={job.journals[0] ?? job.name} job={job} />)}</tbody>
        </table>
      </div>
      {!jobs && !problem && <p class="empty">Looking for jobs …</p>}
      {jobs?.length === 0 && <p class="empty">No job of yours has left a journal on this machine.</p>}
    </section>
  );
}

function useJobs() {
  const [jobs, setJobs] = useState<ListedJob[] | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let timer = 0;
    let over = false;
    const look = async () => {
      try {
        setJobs(await askJson<ListedJob[]>("api/jobs"));
        setProblem("");
      } catch {
        setProblem("“holdfast dashboard”, which serves this page, does not answer. The list is from before.");
      }
      if (!over) timer = window.setTimeout(look, AGAIN_MS);
    };
    void look();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, []);
  return { jobs, problem };
}

async function open(journal: string): Promise<void> {
  try {
    const { story } = await askJson<{ story: string }>(`api/jobs?${new URLSearchParams({ journal })}`, { method: "POST" });
    location.assign(`?${new URLSearchParams({ story })}`);
  } catch (problem) {
    store.say(problem instanceof Refused ? problem.message.trim() : "The journals could not be read.", true);
  }
}

function Row({ job }: { job: ListedJob }) {
  const [journal] = job.journals;
  return (
    <tr>
      <th scope="row">
        {job.link ? <a href={job.link}>{job.name}</a>
          : journal ? <button class="link" onClick={() => void open(journal)}>{job.name}</button> : job.name}
        {job.state === "running" && !job.link && <span class="tag">no dashboard</span>}
      </th>
      <td><span class={`pill ${PILLS[job.state] ?? "job-stopped"}`}>{job.state}</span></td>
      <td class="number spare">{job.started ? moment(job.started, store.now()) : "–"}</td>
      <td class="number">{job.started ? duration(job.seconds) : "–"}</td>
      <td class="number spare">{job.nodes ? count(job.nodes) : "–"}</td>
      <td class="number spare">{job.ranks ? count(job.ranks) : "–"}</td>
      <td class="spare">{job.end}</td>
    </tr>
  );
}
