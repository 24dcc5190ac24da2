/** How wide an element is, now and when it changes. */

import type { RefObject } from "preact";
import { useLayoutEffect, useState } from "preact/hooks";

export function useWidth(element: RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const seen = element.current;
    if (!seen) return;
    const watch = new ResizeObserver(() => setWidth(seen.clientWidth));
    watch.observe(seen);
    setWidth(seen.clientWidth);
    return () => watch.disconnect();
  }, []);
  return width;
}
