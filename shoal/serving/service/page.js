let known = { asks: [], items: [], users: [] };

function row(number, one, pictures, who) {
  const made = make("div", "", pictures ? "row" : "row plain");
  const acts = make("span", "", "acts"), more = make("div", "", "more");
  more.hidden = true;
  const shown = kind => {  // the same button again closes it
    more.hidden = more.dataset.kind === kind && !more.hidden;
    more.dataset.kind = kind;
    return !more.hidden;
  };
  acts.append(make("span", one.score.toFixed(4), "number soft"));
  if (who && known.asks.includes("explain")) acts.append(button("why", () => attempt(async () => {
    if (shown("why")) more.replaceChildren(...shares(await call("/v1/explain", { ...who, item: String(one.item) })));
  })));
  if (known.asks.includes("similar")) acts.append(button("similar", () => attempt(async () => {
    if (!shown("similar")) return;
    const answer = await call("/v1/similar", { item: String(one.item), topk: 5, captions: true });
    more.replaceChildren(...list(answer.items, null));
  })));
  if (known.reads_histories) acts.append(button("add to history", () => {
    $("history").value += ($("history").value ? ", " : "") + one.item;
    $("user").value = "";
    recommend();
  }));
  made.append(make("span", String(number), "soft"));
  if (pictures) made.append(one.picture ? picture(one.picture) : make("span"));
  made.append(named(one), acts, more);
  return made;
}

function list(items, who) {
  const pictures = items.some(one => one.picture);
  return items.map((one, k) => row(k + 1, one, pictures, who));
}

function shares(answer) {
  const most = 10, all = answer.shares, rest = all.slice(most);
  const lines = all.slice(0, most).map(one => [one.title || one.item || one.feature, one.share]);
  if (rest.length) lines.push([rest.length + " more", rest.reduce((sum, one) => sum + one.share, 0)]);
  if (answer.rest) lines.push(["rest: " + answer.rest_is, answer.rest]);
  const longest = Math.max(...lines.map(line => Math.abs(line[1])), 1e-12);
  const made = lines.map(([name, share]) => {
    const line = make("div", "", "share"), bar = make("div", "", share < 0 ? "bar down" : "bar");
    bar.style.width = 100 * Math.abs(share) / longest + "%";
    const place = make("div");
    place.append(bar);
    line.append(make("span", String(name), "name"), place, make("span", (share < 0 ? "" : "+") + share.toFixed(4), "number"));
    return line;
  });
  const off = answer.error ? ", each share known to ± " + answer.error.toPrecision(2) : "";
  return [...made, make("p", "together " + answer.score.toFixed(4) + ", the score" + off, "soft")];
}

// ---- questions ----------------------------------------------------------------------------------

function recommend(event) {
  if (event) event.preventDefault();
  return attempt(async () => {
    $("answer").hidden = true;
    const items = itemsOf($("history").value);
    const user = $("user").value.trim();
    if (!user && !items.length) throw new Error("name a user, or click an example");
    let who = user ? { user } : { history: items };
    const answer = await call("/v1/recommend", { ...who, topk: Number($("topk").value), captions: true });
    const popular = answer.by === "popularity";
    if (!user) who = { history: items.filter(one => !answer.unknown.includes(one)) };
    $("heading").textContent = user ? "For user " + user : "For this history";
    const lost = answer.unknown.length ? "not known: " + answer.unknown.join(", ") + (popular ? "; these are the most popular items" : "") : "";
    $("note").textContent = lost;
    $("about").textContent = "artifact " + answer.artifact;
    $("list").replaceChildren(...list(answer.items, popular ? null : who));
    $("answer").hidden = false;
  });
}

function predict(event) {
  event.preventDefault();
  return attempt(async () => {
    $("answer").hidden = true;
    const sample = JSON.parse($("sample").value);
    const answer = await call("/v1/predict", { samples: [sample] });
    const found = [answer.clicks[0]].flat();
    $("heading").textContent = "A click: " + found.map(one => (100 * one).toFixed(2) + " %").join(", ");
    $("note").textContent = "what each feature adds to the log odds";
    $("list").replaceChildren(...shares(await call("/v1/explain", { sample })));
    $("answer").hidden = false;
  });
}

function start() {
  return attempt(async () => {
    known = { items: [], users: [], ...await call("/v1/examples") };
    $("about").textContent = "artifact " + known.artifact;
    const clicks = known.asks.includes("predict");
    $("click").hidden = !clicks;
    $("ask").hidden = !known.asks.includes("recommend");
    if (clicks) $("sample").value = JSON.stringify(known.sample, null, 1);
    showExamples(known, recommend);
    for (const one of document.querySelectorAll(".history")) one.hidden = !known.reads_histories;
    askAtOnce(recommend);
  });
}

$("ask").onsubmit = recommend;
$("click").onsubmit = predict;
start();
