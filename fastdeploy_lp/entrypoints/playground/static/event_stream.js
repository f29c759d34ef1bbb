// Server-sent events in a response's body.

/** Yields the parsed data of each event, until the stream ends or [DONE]. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      unread += value;
      const events = unread.split(/\r?\n\r?\n/);
      unread = events.pop();
      for (const event of events) {
        const data = dataOf(event);
        if (data === "[DONE]") return;
        if (data) yield JSON.parse(data);
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function dataOf(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}
