import { partClass } from "../parts";
import { useStore } from "../store";
import { duration, percent } from "../words";

/** Where the time went. */
export function Goodput() {
  const { ledger } = useStore("story");
  if (!ledger || ledger.total_s <= 0) return null;
  const parts = ledger.parts.filter((part, k) => k === 0 || part.seconds > 0);
  return (
    <section class="card goodput" aria-labelledby="goodput-title">
      <div class="head"><h2 id="goodput-title">Where the time went</h2></div>
      <div class="stack" aria-hidden="true">
        {parts.map((part) => (
          <i key={part.name} class={partClass(part.name)} style={{ flexGrow: part.seconds / ledger.total_s }} />
        ))}
      </div>
      <ul class="parts" data-test="goodput">
        {parts.map((part) => (
          <li key={part.name}>
            <i class={partClass(part.name)} aria-hidden="true" />
            <span>{part.words}</span>
            <b>{duration(part.seconds)}</b>
            <span class="more">{percent(part.seconds / ledger.total_s)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
