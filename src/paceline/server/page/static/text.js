// A finished answer, set as text: paragraphs, code fences, `code` and **bold**. Nodes are made by hand; nothing that a
// model wrote is ever parsed as markup.
import { el } from "./dom.js";

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return el("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return el("strong", {}, part.slice(2, -2));
    return part;
  });
}

/** Replaces what `node` holds by `text`. */
export function showText(node, text) {
  const parts = [];
  text.split(/^```[^\n]*\n?/m).forEach((part, index) => {
    if (index % 2) parts.push(el("pre", { tabIndex: 0 }, el("code", {}, part.replace(/\n$/, ""))));
    else for (const paragraph of part.split(/\n{2,}/)) if (paragraph.trim()) parts.push(el("p", {}, ...inline(paragraph.replace(/^\n+|\n+$/g, ""))));
  });
  node.replaceChildren(...parts);
}
