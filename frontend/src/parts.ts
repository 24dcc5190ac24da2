/** The parts of a job's time have the same colour wherever they are shown: `--part-…` in the style sheet. */

export function partClass(name: string): string {
  return `part part-${name.replaceAll(" ", "-")}`;
}
