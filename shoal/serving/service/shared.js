"use strict";
// Every text comes from an artifact, which may be anybody's: it is set as text, never as markup.
const $ = id => document.getElementById(id);

function make(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = name;
  return made;
}

function button(text, act) {
  const made = make("button", text);
  made.type = "button";
  made.onclick = act;
  return made;
}

async function call(path, body) {
  const headers = { "content-type": "application/json" };
  const response = await fetch(location.origin + path, body && { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function attempt(work) {
  $("error").textContent = "";
  try { await work(); } catch (error) { $("error").textContent = error.message; }
}

// ---- one item -----------------------------------------------------------------------------------

function picture(address) {
  // Only what this service or the artifact itself holds is shown; of another site there is a link.
  let found;
  try { found = new URL(address, location.href); } catch { return make("span"); }
  if (/^data:image\/(png|jpeg|gif|webp);/.test(address) || found.origin === location.origin) {
    const made = make("img");
    made.src = found.href;
    made.alt = "";
    made.loading = "lazy";
    return made;
  }
  if (found.protocol !== "https:" && found.protocol !== "http:") return make("span");
  const link = make("a", "picture");
  link.href = found.href;
  link.rel = "noopener noreferrer";
  link.target = "_blank";
  return link;
}

function named(one) {
  const cell = make("span", "", "name");
  if (one.title) cell.append(make("b", one.title));
  cell.append(make("span", String(one.item), one.title ? "soft" : ""));
  return cell;
}

// ---- what may be tried --------------------------------------------------------------------------

function showExamples(known, ask) {
  // Buttons that put a user, or the history of one item, into the form, and ask.
  const lines = [];
  const chip = (text, user, history) => lines[lines.length - 1].append(button(text, () => {
    $("user").value = user;
    $("history").value = history;
    ask();
  }));
  const line = text => lines.push(make("div", "", "chips")) && lines[lines.length - 1].append(make("span", text, "soft"));
  if (known.users.length) line("try a user");
  for (const user of known.users) chip(String(user), user, "");
  if (known.reads_histories && known.items.length) line("or somebody who took");
  if (known.reads_histories) for (const one of known.items) chip(one.title || String(one.item), "", one.item);
  $("examples").replaceChildren(...lines);
}

function askAtOnce(ask) {
  const given = new URLSearchParams(location.search);  // /?user=196
  if (given.has("user")) { $("user").value = given.get("user"); ask(); }
}

function itemsOf(text) {
  return text.split(",").map(one => one.trim()).filter(Boolean);
}

