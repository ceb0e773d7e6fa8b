// Server-sent events over fetch: EventSource can send neither a body nor a key.

/** Yields {event, data} for each event of a response, as they arrive. */
export async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        let event = "message";
        const data = [];
        for (const line of part.split(/\r?\n/)) {
          if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
          else if (line.startsWith("event:")) event = line.slice(6).trim();
        }
        if (data.length) yield { event, data: data.join("\n") };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Why a request failed, in words a person can act on. */
export async function whyFailed(response) {
  let said = "";
  try {
    const body = await response.json();
    said = body?.error?.message ?? (typeof body?.detail === "string" ? body.detail : "");
  } catch {
    // no JSON: the status must do
  }
  const wait = response.headers.get("retry-after");
  if (response.status === 429 && wait) said = `${said || "The server is busy"} (try again in ${wait} s)`;
  return said || `The server answered with status ${response.status}.`;
}

/** Keys live in this tab only. */
export const keys = {
  get(name) {
    try {
      return sessionStorage.getItem(`paceline-${name}`) ?? memory.get(name) ?? "";
    } catch {
      return memory.get(name) ?? "";
    }
  },
  set(name, value) {
    memory.set(name, value);
    try {
      if (value) sessionStorage.setItem(`paceline-${name}`, value);
      else sessionStorage.removeItem(`paceline-${name}`);
    } catch {
      // storage is blocked: memory it is
    }
  },
  headers(...names) {
    const key = names.map((name) => keys.get(name)).find(Boolean);
    return key ? { Authorization: `Bearer ${key}` } : {};
  },
};
const memory = new Map();
