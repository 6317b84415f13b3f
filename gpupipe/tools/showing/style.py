"""How the page looks: light or dark as the reader's system is, on phones and wide screens."""

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --quiet: #57606a; --line: #d0d7de; --bar: #0969da;
  --panel: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --ink: #e6edf3; --quiet: #9da7b1; --line: #30363d; --bar: #58a6ff; --panel: #161b22; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .5rem; }
a { color: var(--bar); }
p, dl { margin: .5rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; }
dt, figcaption, .quiet { color: var(--quiet); }
dd { margin: 0; }
pre { background: var(--panel); border: 1px solid var(--line); padding: .75rem;
  white-space: pre-wrap; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1rem 2rem; }
figure { margin: 0; }
svg { display: block; width: 100%; height: auto; max-width: 36rem; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.bar { fill: var(--bar); }
.axis { stroke: var(--line); }
article { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 32rem), 1fr)); gap: 1rem; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 14rem), 1fr)); gap: 1rem; }
.wide { grid-column: 1 / -1; }
img { display: block; max-width: 100%; height: auto; border: 1px solid var(--line); }
figcaption { font-size: .875rem; line-height: 1.4; margin-top: .25rem; }
figcaption ul { margin: .25rem 0 0; padding-left: 1.1rem; }
nav ul, .legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: .5rem 0; list-style: none; }
.swatch { display: inline-block; width: .9em; height: .9em; border: 1px solid var(--line); }
b { color: var(--ink); }
"""
