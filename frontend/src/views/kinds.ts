/** How each kind of event looks. The kinds are those of `observe/story.py`. */

export type Tone = "bad" | "notable" | "good" | "plain";

const TONES: Record<Tone, string[]> = {
  bad: ["worker_failed", "node_lost", "hang", "lease_ended", "round_ended"],
  notable: ["straggler", "node_suspected", "contact_lost", "takeover", "drain", "node_left", "gap", "decision"],
  good: ["recovered", "first_step", "moving_again", "contact_back", "node_back", "job_finished", "workers_done"],
  plain: [],
};

export function toneOf(kind: string): Tone {
  return (Object.keys(TONES) as Tone[]).find((tone) => TONES[tone].includes(kind)) ?? "plain";
}
