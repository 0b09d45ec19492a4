// A button on each block of code. It copies the code without prompts, and without the output that
// follows a prompt.
(() => {
  const code = (text) => {
    const lines = text.trimEnd().split("\n");
    const prompt = /^(\$|>>>) /.exec(lines[0])?.[1];
    if (!prompt) return text;
    const more = prompt === "$" ? null : /^\.\.\.( |$)/;
    let goes_on = false;
    return lines.flatMap((line) => {
      const kept = goes_on || line.startsWith(`${prompt} `) || more?.test(line);
      const own = goes_on ? line : line.slice(prompt.length + 1);
      goes_on = kept && prompt === "$" && line.endsWith("\\");
      return kept ? [own] : [];
    }).join("\n");
  };

  const copy = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.body.appendChild(document.createElement("textarea")); // plain HTTP
    area.value = text;
    area.select();
    document.execCommand("copy");
    area.remove();
  };

  const say = (button, text, label) => {
    button.textContent = text;
    button.setAttribute("aria-label", label);
  };

  for (const block of document.querySelectorAll("div.highlight")) {
    const button = block.appendChild(document.createElement("button"));
    Object.assign(button, { type: "button", className: "copy-code", ariaLive: "polite" });
    say(button, "Copy", "Copy this code");
    button.onclick = () => copy(code(block.querySelector("pre").textContent)).then(
      () => say(button, "Copied", "Copied"), () => say(button, "Not copied", "Not copied"),
    ).then(() => setTimeout(say, 2000, button, "Copy", "Copy this code"));
  }
})();
