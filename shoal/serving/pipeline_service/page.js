let known = { items: [], users: [], context: [], stages: [] };

// ---- one item: where it came from, and what moved it ---------------------------------------------

function origin(one) {
  const cell = make("div", "", "from");
  const sources = one.sources.length ? "from " + one.sources.join(", ") : "added by a rule or the fallback";
  cell.append(make("span", sources, "sources"));
  for (const stage of known.stages) {  // in the order in which they moved it
    const places = one.moved[stage];
    if (!places) continue;
    const text = stage + (places > 0 ? " \u2191" : " \u2193") + Math.abs(places);
    cell.append(make("span", " \u00b7 ", "soft"), make("span", text, places > 0 ? "good" : "bad"));
  }
  if (one.propensity !== null) cell.append(make("span", " \u00b7 here with chance " + one.propensity.toFixed(4), "soft"));
  return cell;
}

function row(number, one, pictures) {
  const line = make("div", "", pictures ? "row" : "row plain"), score = make("span", "", "acts");
  score.append(make("span", one.score === null ? "\u2013" : one.score.toFixed(4), "number soft"));
  line.append(make("span", String(number), "soft"));
  if (pictures) line.append(one.picture ? picture(one.picture) : make("span"));
  line.append(named(one), score, origin(one));
  return line;
}

// ---- questions ----------------------------------------------------------------------------------

function recommend(event) {
  if (event) event.preventDefault();
  return attempt(async () => {
    $("answer").hidden = true;
    const user = $("user").value.trim(), history = itemsOf($("history").value);
    if (!user && !history.length) throw new Error("name a user or a history, or click an example");
    const question = { number: Number($("number").value), captions: true };
    if (user) question.user = user;
    if (history.length) question.history = history;
    if (known.context.length) question.context = JSON.parse($("context").value);
    const answer = await call("/v1/recommend", question);
    const pictures = answer.items.some(one => one.picture), notes = [];
    if (answer.unknown.length) notes.push("sources that do not know who asks: " + answer.unknown.join(", "));
    if (answer.fallbacks.length) notes.push("the fallback took the place of: " + answer.fallbacks.join(", "));
    $("heading").textContent = user ? "For user " + user : "For this history";
    $("note").textContent = notes.join("; ");
    $("about").textContent = "pipeline " + answer.pipeline;
    $("list").replaceChildren(...answer.items.map((one, k) => row(k + 1, one, pictures)));
    $("answer").hidden = false;
  });
}

function start() {
  return attempt(async () => {
    known = await call("/v1/examples");
    $("about").textContent = "pipeline " + known.pipeline;
    for (const one of document.querySelectorAll(".context")) one.hidden = !known.context.length;
    const empty = Object.fromEntries(known.context.map(name => [name, null]));
    $("context").value = JSON.stringify(empty, null, 1);
    showExamples(known, recommend);
    askAtOnce(recommend);
  });
}

$("ask").onsubmit = recommend;
start();
