"""How the page looks: light and dark, wide and narrow, on paper. Nothing is fetched; colours tell nothing alone.

Blue, vermilion and purple can be told apart with any colour vision, and abandoned lines are dashed as well. The heat
maps' scale rises evenly in lightness.
"""

STYLE = """
:root{color-scheme:light dark;--ink:#16202b;--soft:#52606d;--paper:#fff;--panel:#f4f6f8;--edge:#d3dae1;--line:#0b5fa5;
--old:#b6410b;--limit:#7a5600;--band:#e8b64c;--skip:#7b3fa0;--bad:#b00020;--good:#0a6b4b}
@media(prefers-color-scheme:dark){:root{--ink:#e3e8ee;--soft:#a3b0bd;--paper:#12171d;--panel:#1b222a;--edge:#36414c;
--line:#6cb2f0;--old:#f79256;--limit:#e3b95e;--band:#9a7420;--skip:#c193e6;--bad:#ff7d88;--good:#58c79b}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:72rem;padding:1.2rem 1.2rem 3rem;color:var(--ink);
background:var(--paper);overflow-wrap:anywhere}
header p{margin:.3rem 0}h1{font-size:1.35rem;line-height:1.35;margin:.2rem 0 .6rem}
h2{font-size:1.1rem;margin:2.2rem 0 .6rem;padding-top:.8rem;border-top:1px solid var(--edge)}
h4{font-size:.9rem;margin:1rem 0 .3rem}h3{font-size:1rem;margin:1.2rem 0 .4rem}.of{color:var(--soft);font-size:.9rem}
.outcome{display:inline-block;padding:.05rem .6rem;border:1px solid currentColor;border-radius:1rem;font-weight:600}
.outcome.good,.good{color:var(--good)}.outcome.bad,.bad{color:var(--bad)}
section.alarm{border:2px solid var(--bad);border-radius:.4rem;padding:0 1rem .4rem;margin:0 0 1.2rem}
section.alarm h2{border:0;margin:.4rem 0;color:var(--bad)}section.alarm p{color:var(--bad);margin:.3rem 0}
.note{border-left:4px solid var(--limit);padding:.2rem .7rem;margin:.5rem 0;background:var(--panel)}
dl{display:grid;grid-template-columns:minmax(8rem,max-content) 1fr;gap:.2rem 1.2rem;margin:.4rem 0}
dt{color:var(--soft)}dd{margin:0}ol.story{padding-left:1.4rem;margin:.4rem 0}ol.story li{margin:.25rem 0}
figure{margin:1.4rem 0 1.8rem;break-inside:avoid}figcaption{font-size:.9rem;color:var(--soft);margin-bottom:.5rem}
figcaption b{display:block;color:var(--ink)}
.frame{margin-left:3.6rem}.area{position:relative;height:13rem;border:1px solid var(--edge)}
.area svg{position:absolute;inset:0;width:100%;height:100%;overflow:hidden}
.area path,.area rect{vector-effect:non-scaling-stroke}
.scale span,.steps span{position:absolute;font-size:.75rem;line-height:1;color:var(--soft);white-space:nowrap}
.scale span{right:100%;margin-right:.4rem;transform:translateY(-50%)}
.scale.ends span{transform:none;top:0}.scale.ends span+span{top:auto;bottom:0}
.steps{position:relative;height:1.9rem}.steps span{top:.3rem;transform:translateX(-50%)}
.steps em{position:absolute;right:0;top:1.05rem;font-size:.75rem;line-height:1;color:var(--soft)}
.steps.ends{height:1.2rem}.steps.ends span{transform:none;left:0}.steps.ends span+span{left:auto;right:0}
.badges{position:relative}.badges b,.marks b{font-size:.7rem;line-height:1.1rem;width:1.1rem;height:1.1rem;
border-radius:50%;text-align:center;color:var(--paper);background:var(--soft)}
.badges b{position:absolute;transform:translateX(-50%)}.marks b{display:inline-block}
b.fired{background:var(--bad)}b.held{background:var(--skip)}b.target{background:var(--line)}
b.passed{background:var(--good)}
ul.legend,ul.marks{list-style:none;padding:0;margin:.4rem 0;font-size:.85rem;
display:flex;flex-wrap:wrap;gap:.2rem 1.2rem}
ul.marks{display:block}path.grid{stroke:var(--edge);stroke-width:1}
.mark{stroke-width:1.3;stroke:var(--soft);stroke-dasharray:2 3}.mark.fired{stroke:var(--bad)}
.mark.held{stroke:var(--skip)}.mark.target{stroke:var(--line)}.mark.passed{stroke:var(--good)}
.value,.lane{fill:none;stroke-width:1.7}.value.range{stroke-width:1.2}
.surviving .value,path.lane.surviving{stroke:var(--line)}.surviving .range{fill:var(--line);fill-opacity:.8}
.abandoned .value,path.lane.abandoned{stroke:var(--old);stroke-dasharray:6 3}
.abandoned .range{fill:var(--old);fill-opacity:.45}.dot{stroke-width:5;stroke-linecap:round}
.surviving .dot{stroke:var(--line)}.abandoned .dot{stroke:var(--old)}
.threshold,.center{fill:none;stroke:var(--limit)}.threshold{stroke-width:1.4;stroke-dasharray:7 4}
.center{stroke-width:.8}
.band{fill:var(--band);fill-opacity:.3}.abandoned .band{fill-opacity:.15}
.nonfinite{stroke:var(--bad);stroke-width:4}.shade.flagged{fill:var(--old);fill-opacity:.16}
.shade.skipped{fill:var(--skip);fill-opacity:.13}.area.lanes{border:0}path.lane{stroke-width:4}
.back{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
span.lane{position:absolute;left:0;font-size:.75rem;line-height:1.1;color:var(--soft)}
.glyph{position:absolute;transform:translate(-50%,-50%);font-size:1rem;line-height:1.1rem;width:1.25rem;height:1.25rem;
text-align:center;background:var(--paper);border-radius:50%}
.glyph.quarantined{color:var(--bad)}.glyph.chosen,b.ring{box-shadow:0 0 0 2px var(--line);border-radius:50%}
b.ring{display:inline-block;width:1rem;height:1rem;line-height:1rem}
.point{stroke-width:8;stroke-linecap:round}.point.healthy,.point.control{stroke:var(--line)}
.point.hole{stroke:var(--paper);stroke-width:4}.point.flagged{stroke:var(--limit);stroke-linecap:square}
.point.bad{stroke:var(--old);stroke-linecap:square}
i.key{display:inline-block;width:1.6rem;height:.55rem;margin-right:.4rem;vertical-align:.05rem}
i.key.surviving{border-top:3px solid var(--line);height:.2rem}
i.key.abandoned{border-top:3px dashed var(--old);height:.2rem}
i.key.limit{border-top:2px dashed var(--limit);background:color-mix(in srgb,var(--band) 35%,transparent)}
i.key.flagged{background:color-mix(in srgb,var(--old) 25%,transparent)}
i.key.skipped{background:color-mix(in srgb,var(--skip) 25%,transparent)}
i.key.nonfinite{background:var(--bad);width:.35rem}
i.key.point{width:.6rem;height:.6rem;border-radius:50%;background:var(--line)}
i.key.point.control{background:none;border:2px solid var(--line)}
i.key.point.flagged{background:var(--limit);border-radius:0}i.key.point.bad{background:var(--old);border-radius:0}
.c0{fill:#440154;background:#440154}.c1{fill:#46327e;background:#46327e}.c2{fill:#365c8d;background:#365c8d}
.c3{fill:#277f8e;background:#277f8e}.c4{fill:#1fa187;background:#1fa187}.c5{fill:#4ac16d;background:#4ac16d}
.c6{fill:#a0da39;background:#a0da39}.c7{fill:#fde725;background:#fde725}.nan{fill:#e6007a;background:#e6007a}
.area.heat path{shape-rendering:crispEdges}.ring{fill:none;stroke:#fff;stroke-width:4}
.ring.inner{stroke:#d40000;stroke-width:2}
p.key{margin:.2rem 0 0 3.6rem;font-size:.8rem;color:var(--soft)}p.key i{display:inline-block;width:1.2rem;height:.8rem;
vertical-align:-.08rem;print-color-adjust:exact}p.key i.framed{border:2px solid #d40000;width:.9rem;margin-left:.8rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{text-align:left;vertical-align:top;padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--edge)}
th{overflow-wrap:normal}td.n,td.t{white-space:nowrap;color:var(--soft)}.lapsed{text-decoration:line-through}
td.bars{width:38%;vertical-align:middle}i.bar{display:block;height:.7rem;min-width:2px;background:var(--line);
print-color-adjust:exact}i.bar.awaitingapproval,i.bar.needshuman{background:var(--limit)}
i.bar.probation{background:var(--good)}td.name{color:var(--soft)}
tr.chosen td{background:var(--panel)}summary{cursor:pointer;margin:.5rem 0;color:var(--line)}code{font-size:.85em}
@media(max-width:640px){body{padding:.8rem .8rem 2rem;font-size:15px}dl{display:block}dd{margin:0 0 .5rem}
h1{font-size:1.15rem}.frame{margin-left:2.9rem}p.key{margin-left:2.9rem}.area{height:10rem}
.steps span:nth-of-type(even){display:none}
.steps.ends span:nth-of-type(even){display:inline}thead{display:none}tr,td{display:block;border:0;padding:0}
tr{border-bottom:1px solid var(--edge);padding:.4rem 0}
td.n,td.t{display:inline;padding-right:.7rem}td.bars{width:auto;padding:.2rem 0}td.name{font-weight:600}
td:empty{display:none}td[data-name]::before{content:attr(data-name) ": ";color:var(--soft)}}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--paper:#fff;--panel:#f2f2f2;--edge:#bbb;--line:#0b5fa5;
--old:#b6410b;--limit:#7a5600;--band:#e8b64c;--skip:#7b3fa0;--bad:#b00020;--good:#0a6b4b}
html{font-size:10.5px}body{font-size:1rem;max-width:none;padding:0}.area{height:9.5rem}figure{margin:.8rem 0 1.2rem}
svg,b,i,.area{print-color-adjust:exact}tr,li{break-inside:avoid}h2,h3,figcaption{break-after:avoid}
details::details-content{content-visibility:visible;block-size:auto;display:block}}
"""
