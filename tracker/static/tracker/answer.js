// An answer while it comes: what the site streams, as events. It knows nothing of the page.

// Yields {id}, then {text, count, reason} for each piece. What goes wrong is an Error in words for whoever asked; a stop
// by `signal` is an AbortError.
export async function* answer(url, token, asked, signal) {
  const response = await posted(url, token, asked, signal);
  yield { id: response.headers.get("X-Completion-Id") };
  let isWhole = false;
  for await (const data of events(response.body, signal)) {
    if (data === "[DONE]") { isWhole = true; break; }
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices ?? []) {
      const count = event.meshnet?.ids?.length ?? 0;
      yield { text: choice.delta?.content ?? "", count, reason: choice.finish_reason ?? null };
    }
  }
  if (!isWhole) throw new Error("The connection to this site was lost before the answer was whole.");
}

async function posted(url, token, asked, signal) {
  let response;
  try {
    const headers = { "Content-Type": "application/json", "X-CSRFToken": token };
    const body = JSON.stringify(asked);
    response = await fetch(url, { method: "POST", credentials: "same-origin", headers, body, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Error("This site can't be reached. Look after your connection, then try again.");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  throw new Error(told?.error?.message ?? `This site answered ${response.status}. Reload the page, then try again.`);
}

// The data of server-sent events, wherever the pieces of the stream were cut. Comments carry nothing.
async function* events(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      return; // cut off: the caller misses the end
    }
    if (piece.done) return;
    const blocks = (rest + piece.value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}
