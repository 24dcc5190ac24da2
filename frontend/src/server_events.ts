/** Server-sent events out of a plain response: `EventSource` cannot show who asks. */

export interface ServerEvent {
  kind: string;
  data: string;
}

/** Feed it text as it comes; it gives the events that are complete. */
export class EventReader {
  private rest = "";

  read(text: string): ServerEvent[] {
    const blocks = (this.rest + text).split("\n\n");
    this.rest = blocks.pop() ?? "";
    return blocks.map(parse).filter((event) => event.data !== "");
  }
}

function parse(block: string): ServerEvent {
  let kind = "message";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) kind = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return { kind, data: data.join("\n") };
}

export async function* serverEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.getReader();
  const text = new TextDecoder();
  const events = new EventReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* events.read(text.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
