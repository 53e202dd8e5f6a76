"""How the page looks: on a screen, on a phone, on paper, by day and by night."""

CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#222;--faint:#666;--line:#ddd;--soft:#f4f5f7;
--bad:#b3261e;--odd:#8a5a00;--heat:#0072b2}
@media(prefers-color-scheme:dark){:root{--paper:#15171a;--ink:#e6e6e6;--faint:#a0a4ab;
--line:#34383f;--soft:#1f2226;--bad:#ff8a80;--odd:#f2b84b;--heat:#4aa8e0}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:68rem;padding:1rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.2rem 0}
h2{font-size:1.2rem;margin:2.2rem 0 .4rem;border-top:1px solid var(--line);padding-top:1rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
p{margin:.4rem 0;max-width:46rem}
.faint,figcaption{color:var(--faint);font-size:.85rem}
nav{margin:.6rem 0}nav a{margin-right:1rem;color:inherit}
.note{border-left:4px solid var(--line);background:var(--soft);padding:.5rem .8rem;margin:.6rem 0;
max-width:none}
.private{border-color:var(--odd)}.bad{border-color:var(--bad)}.odd{border-color:var(--odd)}
.note ul{margin:.3rem 0;padding-left:1.2rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--line);
white-space:nowrap}
th:first-child,td:first-child{text-align:left}
thead th{font-weight:600;color:var(--faint);vertical-align:bottom}
td.heat{text-align:center;min-width:2.8rem;padding:.25rem .3rem}
th.up{text-align:center;padding:.25rem 0}
th.up span{writing-mode:vertical-rl;transform:rotate(180deg)}
.dot{display:inline-block;width:.75em;height:.75em;border-radius:50%;margin-right:.4em}
.line{display:inline-block;width:1.2em;height:.3em;margin-right:.4em;vertical-align:middle;
border-radius:1px}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;font-size:.9rem;margin:.4rem 0}
.on-images{background:#222;color:#eee;padding:.05rem .5rem;border-radius:3px}
.big{font-size:2.6rem;font-weight:650;line-height:1.1;margin:.3rem 0}
.big small{font-size:1rem;font-weight:400;color:var(--faint);line-height:1.3;
display:inline-block}
.beside{display:grid;gap:1rem 2rem;align-items:start;
grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr))}
.multiples{display:grid;gap:.8rem;align-items:start;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr))}
figure{margin:0}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--faint);font-size:15px}
svg .axis,svg .frame{stroke:var(--faint);fill:none}
svg .frame{stroke:var(--line)}
svg .all{fill:none;stroke:var(--ink);stroke-width:1.2;stroke-dasharray:3 2}
svg.map circle{fill-opacity:.75;stroke:var(--paper);stroke-width:.6}
.ranges{display:grid;grid-template-columns:max-content 1fr;gap:.35rem .8rem;align-items:center;
max-width:46rem;font-size:.92rem}
.range,.stack,.scale{position:relative;height:1.1rem;background:var(--soft)}
.range i{position:absolute;top:50%;transform:translateY(-50%)}
.whisker{height:2px;background:var(--faint)}.quartiles{height:.8rem;opacity:.85}
.median{width:2px;height:1.1rem;background:var(--ink)}
.stack{display:flex}.stack i{height:100%}
.scale{background:none;color:var(--faint);font-size:.8rem;display:flex;
justify-content:space-between}
.sheet{display:grid;gap:4px;grid-template-columns:repeat(auto-fill,minmax(7.5rem,1fr))}
.sheet figure{background:#000;aspect-ratio:1;position:relative;break-inside:avoid}
.sheet img{position:absolute;inset:0;width:100%;height:100%;object-fit:contain}
.sheet figcaption{position:absolute;left:0;bottom:0;background:#000a;color:#fff;
padding:0 .3rem;font-size:.75rem}
.toggle{user-select:none;cursor:pointer}
body:has(#outlines:not(:checked)) .outlines{display:none}
@media(max-width:30rem){body{padding:.7rem;font-size:15px}
.sheet{grid-template-columns:repeat(3,1fr)}th,td{padding:.2rem .4rem}}
@media print{:root{color-scheme:light;--paper:#fff;--ink:#000;--faint:#444;--line:#bbb;
--soft:#f2f2f2}body{max-width:none;font-size:10pt}nav,.toggle{display:none}
h2,h3,.legend{break-after:avoid}figure,svg,table,.ranges{break-inside:avoid}
.wide{overflow:visible}th{white-space:normal}table{font-size:.8rem}.sheet{grid-template-columns:repeat(8,1fr)}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
