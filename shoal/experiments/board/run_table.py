"""The board's page: an empty frame, which board.js fills with what the routes answer."""

from importlib import resources

from shoal.pages.html import Html, page

SCRIPT = resources.files("shoal.experiments.board").joinpath("board.js").read_text()
BODY = Html("""
<style>
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid; }
th[aria-sort] button { color: var(--ink); }
#bar { display: flex; gap: .75rem 1rem; flex-wrap: wrap; align-items: center; margin: 1rem 0; }
#filter { flex: 1 1 14rem; max-width: 26rem; }
#runs td { white-space: nowrap; } #runs td.name { white-space: normal; min-width: 9rem;
  overflow-wrap: anywhere; }
#runs tr.chosen { background: var(--shade); }
progress { display: block; width: 100%; min-width: 5rem; height: .5rem;
  accent-color: var(--accent); }
button.stop { padding: 0 .4rem; font-size: .85rem; }
.swatch { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem;
  margin-right: .4rem; vertical-align: middle; }
.legend span.one { margin-right: 1.2rem; overflow-wrap: anywhere; }
#differences td { overflow-wrap: anywhere; min-width: 7rem; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
</style>
<p class="soft" id="said" role="status">reading…</p>
<div id="bar">
  <input id="filter" type="search" placeholder="filter: words of name, model, data or state"
    aria-label="filter" autocomplete="off">
  <span class="soft" id="count"></span>
  <button id="clear" hidden>choose none</button>
  <a id="report" target="_blank" rel="noopener" hidden>report</a>
</div>
<div class="wide"><table id="runs"><thead><tr></tr></thead><tbody></tbody></table></div>
<section id="chosen" hidden>
  <h2 id="chosen-title"></h2>
  <p class="legend" id="legend"></p>
  <p><label>metric <select id="metric"></select></label></p>
  <div class="grid" id="charts"></div>
  <div id="live"></div>
  <div id="configs"></div>
</section>
""")


def board_page(root: str) -> str:
    """The page of the runs below a folder of this name."""
    return page(f"Runs · {root}", BODY, script=SCRIPT)
