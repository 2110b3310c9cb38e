// The page: reads its controls, asks the library (binding.cpp), and shows the answers. It computes no rounding itself.
'use strict';

const $ = id => document.getElementById(id);
let library;
/// Asks the library. Throws its message for a mistake.
function ask(request) {
  const answer = JSON.parse(library.ccall('halftone_call', 'string', ['string'], [JSON.stringify(request)]));
  if (answer.error) throw Error(answer.error);
  return answer;
}

// --- small parts

const escaped = text => String(text).replace(/[&<>"]/g, c => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'})[c]);
const short = x => x == null ? '-' : Math.abs(x) >= 1e6 || (x !== 0 && Math.abs(x) < 1e-4) ? x.toExponential(2) : String(+x.toPrecision(4));
const percent = x => x == null ? '-' : x === 0 ? '0 %' : x < 1e-4 ? '< 0.01 %' : (100 * x).toFixed(x < 0.1 ? 2 : 1) + ' %';
const whole = x => Math.round(x).toLocaleString('en-US');
const option = (value, text = value, chosen = false) => `<option value="${escaped(value)}"${chosen ? ' selected' : ''}>${escaped(text)}</option>`;
/// Fills a table: a caption, the heads, and rows of cells.
function fill(table, caption, heads, rows) {
  table.innerHTML = `<caption><span>${caption}</span></caption><thead><tr>${heads.map(h => `<th scope="col"${h === 'format' || h === 'how' ? ' class="text"' : ''}>${h}</th>`).join('')}</tr></thead><tbody>` +
    rows.map(row => `<tr>${row.map((cell, i) => `<td${heads[i] === 'format' || heads[i] === 'how' || / or /.test(cell) ? ' class="text"' : ''}>${cell}</td>`).join('')}</tr>`).join('') + '</tbody>';
  const box = table.parentElement;  // where it is wider than the window, keys must scroll it
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0, box.role = 'region', box.ariaLabel = caption;
  else box.removeAttribute('tabindex');
}
/// Shows a sentence, or the library's message if `make` throws.
function say(element, make) {
  try {
    element.innerHTML = make();
    element.classList.remove('error');
  } catch (error) {
    element.textContent = error.message;
    element.classList.add('error');
  }
}
function numberIn(input) {
  const x = Number(input.value.replace(',', '.'));
  const wrong = input.value.trim() === '' || Number.isNaN(x);
  input.setAttribute('aria-invalid', wrong);
  if (wrong) throw Error(`"${input.value}" is not a number. Write it as 0.1, -3 or 1e-8.`);
  return x;
}

const left = 62;  // of the frame of a chart
/// Draws lines in a frame with the least and the largest number at both axes. lines: {points: [[x, y], ...], color, dash}.
function chart(svg, lines, {x: [x0, x1], y: [y0, y1], marks = '', xName = '', yName = '', format = short}) {
  const width = Math.max(280, svg.clientWidth), height = svg.dataset.height, right = width - 8, top = 10, bottom = height - 26;
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);  // a unit is a pixel, so that its text is as large as that of the page
  if (!(y1 > y0)) [y0, y1] = [y0 - Math.abs(y0) / 2 - 1e-30, y1 + Math.abs(y1) / 2 + 1e-30];
  const px = x => left + (right - left) * (x - x0) / (x1 - x0), py = y => bottom - (bottom - top) * (y - y0) / (y1 - y0);
  const path = points => points.map(([x, y], i) =>
    y == null ? '' : (i && points[i - 1][1] != null ? 'L' : 'M') + px(x).toFixed(1) + ' ' + py(Math.max(y0, Math.min(y1, y))).toFixed(1)).join('');
  svg.innerHTML = `<path d="M${left} ${top}V${bottom}H${right}" fill="none" stroke="var(--faint)"/>
<text x="${left - 5}" y="${top + 9}" text-anchor="end">${format(y1)}</text><text x="${left - 5}" y="${bottom}" text-anchor="end">${format(y0)}</text>
<text x="${left}" y="${height - 8}">${format(x0)}</text><text x="${right}" y="${height - 8}" text-anchor="end">${format(x1)}</text>
<text x="${(left + right) / 2}" y="${height - 8}" text-anchor="middle">${xName}</text><text transform="translate(${left - 14} ${(top + bottom) / 2}) rotate(-90)" text-anchor="middle">${yName}</text>` +
    lines.map(l => `<path d="${path(l.points)}" fill="none" stroke="${l.color}" stroke-width="${l.width || 2}"${l.dash ? ` stroke-dasharray="${l.dash}"` : ''}/>`).join('') +
    (typeof marks === 'function' ? marks(px, py) : marks);
}

// --- 1. A number

const scalars = {bf16: 'bf16', f16: 'f16', tf32: 'tf32', e4m3: 'e4m3 (FP8)', e5m2: 'e5m2 (FP8)', e2m3: 'e2m3 (FP6)', e2m1: 'e2m1 (FP4)', int8: 'int8', f32: 'f32'};
const blocks = {mxfp8: 'MXFP8 block', mxfp6: 'MXFP6 block', mxfp4: 'MXFP4 block', nvfp4: 'NVFP4 block'};
const others = Array.from({length: 31}, (_, i) => +(Math.sin(7 * i + 2) * Math.exp(1.5 * Math.sin(3 * i))).toFixed(3));
let shownAround = null;  // the values in the picture: it stays while the pointer moves

function showNumber(keepsPicture = false) {
  const name = $('n-own').value.trim() || $('n-format').value, isBlock = name in blocks;
  $('n-scalar').hidden = isBlock, $('n-block').hidden = !isBlock;
  say($('n-says'), () => {
    const x = numberIn($('n-x'));
    if (isBlock) return showBlock(name, x);
    const rounding = $('n-rounding').value, a = ask({do: 'round', format: name, x, rounding});
    showBits(a, name);
    showStairs(a, name, rounding, keepsPicture);
    if (a.result.text === 'inf' || a.result.text === '-inf')
      return `${x} becomes <b>infinity</b> in ${escaped(name)}: its largest number is ${a.format.largest.text}. A gradient like this makes a training under a loss scale skip the step.`;
    if (a.exact) return `${escaped(name)} holds <b>${a.result.text}</b> exactly. Its neighbors are ${a.below.text} and ${a.above.text}.`;
    if (rounding === 'stochastic')
      return `${x} becomes <b>${a.above.text}</b> in ${percent(a.up)} of all cases and <b>${a.below.text}</b> in all others: right on average.`;
    if (a.result.value === 0)
      return `${x} becomes <b>0</b> in ${escaped(name)}: its smallest number is ${a.format.smallest.text}. A gradient like this is lost.` + scaled(name, x, rounding);
    if (Math.abs(x) > a.format.largest.value)
      return `${x} saturates: ${escaped(name)} ends at <b>${a.result.text}</b> and has no infinity.`;
    return `In ${escaped(name)} ${x} becomes <b>${a.result.text}</b>, ${percent(a.relative.value)} away. Its neighbors are ${a.below.text} and ${a.above.text}.` +
      (Math.abs(x) < a.format.normal.value ? ` Below ${short(a.format.normal.value)}, the smallest normal number, it has fewer bits.` : '');
  });
}
/// Says what a loss scale does to a number that becomes 0.
function scaled(format, x, rounding) {
  const a = ask({do: 'round', format, x: 65536 * x, rounding}).result;
  return !a.value ? ' Even times 65,536 it is 0.' : ` Under a loss scale of 65,536 it is ${short(65536 * x)}, becomes <b>${a.text}</b>, and is ${short(a.value / 65536)} after the division.`;
}
function showBits(a, name) {
  const parts = [['sign', 'b0', a.bits[0]], ['exponent', 'b1', a.bits[1]], [name.startsWith('int') ? 'magnitude' : 'fraction', 'b2', a.bits[2]]];
  $('n-bits').innerHTML = parts.filter(p => p[2]).map(p => `<span class="${p[1]}"><small>${p[0]}, ${p[2].length}</small>${p[2]}</span>`).join('');
  const rows = a.roundings.map(r => [r.name.replace('_', ' '), r.result.text, short(r.off.value), r.bits.join(' ')]);
  const p = a.up;
  rows.push(['stochastic', p == null ? a.result.text : `${a.above.text} or ${a.below.text}`, '0 on average', p == null ? '' : percent(p) + ' up']);
  fill($('n-table'), 'all roundings', ['rounding', 'result', 'error', 'bits'], rows);
  const f = a.format;
  $('n-facts').textContent = `${f.bits} bits: largest ${f.largest.text}, smallest normal ${f.normal.text}, smallest ${f.smallest.text}, ${whole(f.numbers)} different numbers that are not negative, ` +
    (f.infinity ? 'and infinity beyond.' : 'no infinity: larger values saturate.');
}
function showStairs(a, format, rounding, keeps) {
  const x = a.x.value ?? a.format.largest.value;
  if (!keeps || !shownAround) {
    const spacing = (a.above.value ?? x) - (a.below.value ?? x) || Math.abs(x) || 1;
    shownAround = [x - 4 * spacing, x + 4 * spacing];
  }
  const [from, to] = shownAround, count = 480;
  const y = ask({do: 'stairs', format, rounding, from, to, count}).y;
  const finite = y.filter(v => v != null), at = i => from + (to - from) * i / (count - 1);
  chart($('n-stairs'), [{points: [[from, from], [to, to]], color: 'var(--line)', width: 1}, {points: y.map((v, i) => [at(i), v]), color: 'var(--c0)'}],
    {x: shownAround, y: [Math.min(from, ...finite), Math.max(to, ...finite)], format: v => short(+v.toPrecision(6)), xName: 'value', yName: 'becomes',
     marks: (px, py) => a.result.value == null ? '' : `<path d="M${px(x)} ${py(from)}V${py(a.result.value)}H${left}" stroke="var(--c1)" fill="none" stroke-dasharray="4 3"/><circle cx="${px(x)}" cy="${py(a.result.value)}" r="5" fill="var(--c1)"/>`});
}
function showBlock(name, x) {
  const values = [x, ...others], a = ask({do: 'block', format: name, x: values});
  const most = Math.max(...values.map(Math.abs), ...a.y.map(Math.abs)) || 1, middle = 112, height = 100, step = 19.5;
  const size = v => Math.sign(v) * Math.sqrt(Math.abs(v) / most) * height;
  const bar = (i, v, dx, color) => `<rect x="${8 + i * step + dx}" width="8" y="${middle - Math.max(0, size(v))}" height="${Math.max(Math.abs(size(v)), 1)}" fill="${color}"><title>${v}</title></rect>`;
  $('n-bars').innerHTML = values.map((v, i) => bar(i, v, 0, 'var(--faint)') + bar(i, a.y[i], 8.5, 'var(--c0)')).join('') +
    a.scales.map((s, i) => `<text x="${8 + i * a.columns * step}" y="236">scale ${short(s.value)}</text><path d="M${6 + i * a.columns * step} 16V222" stroke="var(--line)"/>`).join('');
  return `${escaped(a.description)}: ${short(a.bits)} bits a number with its part of the scale. <b>${a.lost} of 32 numbers become 0</b>; the signal is ${short(a.decibels.value)} dB above the noise. ` +
    (Math.abs(x) > 40 ? 'Your value is so large that the others of its block lose their bits.' : 'Try 300, or 3000.');
}
function startNumber(about) {
  $('n-format').innerHTML = Object.entries(scalars).map(([v, t]) => option(v, t)).join('') + Object.entries(blocks).map(([v, t]) => option(v, t)).join('');
  $('n-rounding').innerHTML = about.roundings.map(r => option(r, r.replace('_', ' '))).join('');
  $('n-x').oninput = () => {
    const size = Math.log2(Math.abs(Number($('n-x').value)));
    if (Number.isFinite(size)) $('n-slide').value = size;
    showNumber();
  };
  $('n-slide').oninput = () => ($('n-x').value = +((Number($('n-x').value) < 0 ? -1 : 1) * 2 ** $('n-slide').value).toPrecision(5), showNumber());
  $('n-format').oninput = () => ($('n-own').value = '', showNumber());
  $('n-own').oninput = $('n-rounding').oninput = () => showNumber();
  $('n-stairs').onpointermove = event => {
    const box = $('n-stairs').getBoundingClientRect(), place = (event.clientX - box.left - left) / (box.width - left - 8);
    if (place < 0 || place > 1 || !shownAround) return;
    $('n-x').value = +(shownAround[0] + place * (shownAround[1] - shownAround[0])).toPrecision(7);
    showNumber(true);
  };
  for (const button of document.querySelectorAll('[data-try]'))
    button.onclick = () => {
      [$('n-x').value, $('n-format').value] = button.dataset.try.split(' ');
      $('n-own').value = '', $('n-rounding').value = 'nearest_even';
      $('n-x').oninput();
    };
  showNumber();
}

// --- 2. An update

const labels = {'fp32': 'f32', 'full-bf16': 'bf16, nearest', 'full-bf16-sr': 'bf16, stochastic', 'full-bf16-kahan': 'bf16, Kahan', 'split-bf16': 'bf16, split'};
const how = {'fp32': '', 'full-bf16': '', 'full-bf16-sr': 'up or down by chance', 'full-bf16-kahan': 'a second bf16 keeps what was lost', 'split-bf16': 'the lower 16 bits of an f32'};
const dashes = ['', '', '2 3', '8 4', '3 6'];
function showUpdate() {
  say($('u-says'), () => {
    const [w, g, lr] = ['u-w', 'u-g', 'u-lr'].map(id => numberIn($(id)));
    const a = ask({do: 'update', w, g, lr, steps: 64}), by = Object.fromEntries(a.paths.map(p => [p.strategy, p]));
    const all = a.paths.flatMap(p => p.path).filter(v => v != null);
    chart($('u-chart'), a.paths.map((p, i) => ({points: p.path.map((v, s) => [s, v]), color: `var(--c${i})`, width: i ? 2 : 5, dash: dashes[i]})),
      {x: [0, 64], y: [Math.min(...all), Math.max(...all)], xName: 'step', yName: 'weight', format: v => short(+v.toPrecision(6))});
    fill($('u-table'), 'after 64 steps', ['weight', 'bytes', 'moved', 'is now', 'how'],
      a.paths.map((p, i) => [`<svg class="line" viewBox="0 0 30 8" aria-hidden="true"><path d="M0 4H30" stroke="var(--c${i})" stroke-width="${i ? 2 : 5}" stroke-dasharray="${dashes[i]}"/></svg>${labels[p.strategy]}`, p.bytes, `${p.moves} of 64`, p.last.text, how[p.strategy]]));
    const change = a.change.value, half = a.half.value;
    const facts = `A step adds ${short(change)} to ${a.start.text}. The next bf16 is ${a.next.text}; a weight gets there only if a step adds more than half of the distance, ${short(half)}. `;
    if (change === 0) return 'A step adds nothing. Choose a gradient and a rate that are not 0.';
    if (by['full-bf16'].moves === 0)
      return facts + `This step is smaller, so the sum rounds back to ${a.start.text}: <b>the bf16 weight never moves</b>, however often the step is repeated. Kahan, stochastic and split weights move, to ${by['split-bf16'].last.text} or near it.`;
    if (by['full-bf16'].moves < 64 && Math.abs(change) < half)
      return facts + `It moved ${by['full-bf16'].moves} times and <b>stopped</b> at ${by['full-bf16'].last.text}, where the step became smaller than half of the distance to the next number. In f32 it is at ${by.fp32.last.text}.`;
    return facts + `The step is large enough: <b>the bf16 weight moves</b>, to ${by['full-bf16'].last.text} (f32: ${by.fp32.last.text}). Make the rate smaller, or the weight larger.`;
  });
}
function startUpdate() {
  $('u-w').oninput = $('u-g').oninput = $('u-lr').oninput = showUpdate;
  $('u-slide').oninput = () => ($('u-lr').value = +(10 ** $('u-slide').value).toPrecision(3), showUpdate());
  showUpdate();
}

// --- 3. A training

const uses = ['parameter', 'master_weight', 'compensation', 'gradient', 'master_gradient', 'optimizer_state', 'cast_cache', 'activation', 'input', 'workspace'];
const words = {parameter: 'weights', master_weight: 'masters, lower halves', compensation: 'lost bits', gradient: 'gradients', master_gradient: 'f32 gradients', optimizer_state: 'optimizer', cast_cache: 'casts of weights', activation: 'activations', input: 'digits', workspace: 'workspace'};
const whatItDoes = {
  'fp64': 'all in 64 bits', 'fp32': 'all in 32 bits', 'amp-bf16': 'f32 weights; products in bf16', 'amp-fp16': 'f32 weights; products in f16; loss scale',
  'o1-fp16': 'as amp-fp16, with another list of operations', 'o2-bf16': 'bf16 weights; f32 copies (masters) take the updates', 'o2-fp16': 'f16 weights; f32 masters take the updates; loss scale',
  'o3-fp16': 'all weights in f16, no loss scale', 'full-bf16': 'all in bf16', 'full-bf16-sr': 'as full-bf16; updates round up or down by chance',
  'full-bf16-kahan': 'as full-bf16; a second bf16 keeps the lost bits', 'split-bf16': 'f32 weights in two halves; the model sees the upper one'};
const hasScale = strategy => /^(amp|o1|o2)-fp16$/.test(strategy);
const colors = {parameter: 0, master_weight: 2, compensation: 2, gradient: 3, master_gradient: 4, optimizer_state: 5, cast_cache: 6, activation: 7, input: 4, workspace: 1};
const parameters = 144 * 64 + 64 + 2 * 64 + 64 * 10 + 10, compared = 200;
/// The hashes of the weights after 200 steps at the rate 0.001, computed by the native program on x86-64
/// (tests/web/check.py compares them with that program and with this page).
const native = {
  'fp64': 'b469637be6d838aa', 'fp32': '7034614613d9a40b', 'amp-bf16': '743a777c62647f96', 'amp-fp16': 'c79d0d4db5f7ae2c',
  'o1-fp16': 'c79d0d4db5f7ae2c', 'o2-bf16': '88a804aed2a7c42d', 'o2-fp16': '76adca5aba1cfc48', 'o3-fp16': '845fe87984f7c125',
  'full-bf16': 'b3754249b7acbe1d', 'full-bf16-sr': '5dff2b4272f73a27', 'full-bf16-kahan': '13e1a626c1c3d1ee', 'split-bf16': 'b446402fda9cf29e'};
const runs = [];
let running = false, timer = null;

class Run {
  constructor(id, strategy, strategies) {
    this.id = id, this.losses = [], this.busy = 0;
    this.box = document.createElement('div');
    this.box.innerHTML = `<h3 style="color:var(--c${id})">${id ? 'Second' : 'First'} training</h3><div class="controls">
<label>strategy <select class="strategy">${strategies.map(s => option(s, s, s === strategy)).join('')}</select></label>
<label>first loss scale of f16 <select class="scale">${option(65536, '65,536', true) + option(2 ** 30, '1,073,741,824') + option(0, 'none') + option(2 ** -24, 'none, gradients 2^24 times smaller')}</select></label></div>
<p class="facts" data-is="strategy"></p><p class="facts" data-is="facts"></p><div class="bar" role="img"></div><ul class="key"></ul><p class="facts" data-is="bytes"></p>
<p class="facts" data-is="lost"></p><div class="wide"><table class="list"></table></div><p class="hash" data-is="hash"></p>`;
    $('t-runs').append(this.box);
    this.part('.strategy').oninput = this.part('.scale').oninput = startAgain;
  }
  part(selector) { return this.box.querySelector(selector); }
  text(name, html) { this.part(`[data-is=${name}]`).innerHTML = html; }
  get strategy() { return this.part('.strategy').value; }
  begin() {
    this.list = {}, this.losses = [], this.busy = this.timed = 0, this.hash = this.rate = null;
    this.autocast = ask({do: 'new', id: this.id, strategy: this.strategy, scale: Number(this.part('.scale').value), lr: Number($('t-lr').value)}).autocast;
    this.part('.scale').parentElement.hidden = !hasScale(this.strategy);
    this.text('strategy', `${this.strategy}: ${whatItDoes[this.strategy]}.`);
    this.go(1), this.go(1);  // the first step makes the optimizer's state, and checks its inputs: its bytes are not those of others
    this.accuracy = null;
    this.look();
  }
  take(answer) {
    this.losses.push(...answer.losses);
    if (answer.step === compared) this.hash = ask({do: 'hash', id: this.id}).hash;
    return answer;
  }
  go(count) {
    const began = performance.now();
    this.answer = this.take(ask({do: 'steps', id: this.id, count}));
    this.busy += performance.now() - began, this.timed += count;
  }
  /// A step with a log and a probe, which change no bit.
  look() {
    this.seen = this.take(ask({do: 'look', id: this.id}));
    this.looked = this.losses.length, this.busy = this.timed = 0;
  }
  test() { this.accuracy = ask({do: 'accuracy', id: this.id}).accuracy; }
  show() {
    const a = this.answer, s = this.seen, bytes = a.bytes;
    if (this.timed > 20) this.rate = whole(1000 * this.timed / this.busy);
    const rate = this.rate ? `, <span data-is="rate">${this.rate}</span> steps a second` : '';
    this.text('facts', `Step ${this.losses.length}: loss <b>${short(smooth(this.losses))}</b>${this.accuracy == null ? '' : `, <b>${percent(this.accuracy)}</b> of 500 other digits right (step ${this.looked})`}${rate}.
${a.scale === 1 ? 'No loss scale' : a.scale < 1 ? 'No loss scale, small gradients' : 'Loss scale ' + whole(a.scale)}, <b>${Math.max(a.skipped, s.skipped)}</b> steps skipped, ${s.operations.reduce((sum, o) => sum + o.casts, 0)} casts a step.`);
    const known = uses.filter(u => bytes[u]), bar = this.part('.bar');
    bar.innerHTML = known.map(u => `<div style="flex:${bytes[u]};background:var(--c${colors[u]})" title="${words[u]}: ${whole(bytes[u])}"></div>`).join('');
    bar.setAttribute('aria-label', 'bytes by use: ' + known.map(u => words[u] + ' ' + whole(bytes[u])).join(', '));
    this.part('.key').innerHTML = known.map(u => `<li><i style="background:var(--c${colors[u]})"></i>${words[u]} ${whole(bytes[u])}</li>`).join('') + `<li><b>together ${whole(a.total)}</b></li>`;
    const each = uses.filter(u => a.peaks[u] && !['activation', 'input', 'workspace', 'cast_cache'].includes(u)).map(u => [words[u], a.peaks[u] / parameters]);
    this.text('bytes', `Bytes a weight: ${each.map(([w, b]) => `${w} ${short(+b.toFixed(1))}`).join(' + ')} = <b>${short(+each.reduce((sum, e) => sum + e[1], 0).toFixed(1))}</b>, each at its own peak. The bar shows the one moment when all bytes together are most: some gradients are then not there, and activations and workspace are no bytes of weights.`);
    const u = s.updates, now = s.underflow.scaled, without = s.underflow.unscaled, isF16 = this.strategy.includes('fp16');
    const lost = f => `<b>${percent(f.zero.value)}</b> of the gradients become 0 and <b>${percent(f.short.value)}</b> are below its smallest normal number, 6.1e-5, where bits are missing`;
    const left = f => f.zero.value == null ? 'Without a loss scale, <b>all gradients became 0</b> in f16.' :
      `Without a loss scale, <b>${percent(f.short.value)}</b> of the gradients that f16 has left are below 6.1e-5, where bits are missing. Those that became 0 are not in this count.`;
    this.text('lost', (!now.zero.value && now.zero.value !== 0 ? `In step ${this.looked}, all updates were 0. ` : u.lost ? `In step ${this.looked}, <b>${percent(u.lost / u.count)}</b> of the updates were lost: they are so small that the weight rounds back. ` : `In step ${this.looked}, no update was lost. `) +
      (isF16 ? (a.scale <= 1 ? left(now) : `In f16, under this loss scale, ${lost(now)}; without it ${lost(without)}.`) : `This strategy has no f16. If its gradients were f16 without a loss scale: ${lost(without)}.`));
    if (this.shownList !== JSON.stringify(s.operations)) this.showList(s);
    this.text('hash', this.hash ? this.verdict() : `At step ${compared} the weights get a hash.`);
  }
  /// Why a hash may differ from the native one, or that it does not.
  verdict() {
    const wanted = native[this.strategy], changed = Object.keys(this.list).length || $('t-lr').value !== '0.001' || this.part('.scale').value !== '65536';
    const here = `Hash of the weights at step ${compared}: <span data-hash="${this.strategy}">${this.hash}</span>. `;
    if (changed) return here + 'The native hash is for the rate 0.001, the usual loss scale and an unchanged list.';
    if (!wanted) return here;
    return here + (wanted === this.hash ? `<b class="right">Native x86-64: ${wanted}, the same bits.</b>` : `<b class="error">Native x86-64: ${wanted}, other bits.</b>`);
  }
  showList(s) {
    this.shownList = JSON.stringify(s.operations);
    const choice = o => !this.autocast ? '-' : `<select aria-label="treatment of ${o.op}" data-op="${o.op}">${['low_precision', 'full_precision', 'as_is'].map(c => option(c, c.replace('_', ' '), c === o.class)).join('')}</select>`;
    fill(this.part('.list'), this.autocast ? `the list of autocast: change a treatment, and go on` : 'this strategy has no autocast, and asks no list',
      ['operation', 'treatment', 'runs in', 'casts', 'became 0'], s.operations.map(o => [o.op, choice(o), o.runs_in, o.casts, o.to_zero]));
    for (const select of this.box.querySelectorAll('[data-op]'))
      select.oninput = () => {
        ask({do: 'set', id: this.id, op: select.dataset.op, class: select.value});
        this.list[select.dataset.op] = select.value;
        for (const run of runs) run.look();  // a step of both, which stay at the same one
        showRuns();
        this.part(`[data-op="${select.dataset.op}"]`).focus();
      };
  }
}

/// Returns the mean of the last tenth, at least of one loss.
function smooth(losses, end = losses.length) {
  const part = losses.slice(Math.max(0, end - Math.max(1, Math.ceil(end / 10))), end);
  return part.some(x => x == null) ? null : part.reduce((a, b) => a + b, 0) / part.length;
}
function showRuns() {
  if (runs.some(run => !run.seen)) return;
  for (const run of runs) run.show();
  $('t-says').setAttribute('aria-live', running ? 'off' : 'polite');  // screen readers hear the end of a training
  const steps = Math.max(...runs.map(r => r.losses.length), 2), every = Math.ceil(steps / 300);
  const lines = runs.map((r, i) => ({color: `var(--c${i})`, dash: i ? '6 3' : '', points: r.losses.map((l, s) => [s + 1, l]).filter((_, s) => s % every === 0 || s === steps - 1)}));
  chart($('t-chart'), lines, {x: [1, steps], y: [0, Math.max(2.5, ...lines.flatMap(l => l.points.map(p => p[1] || 0)))], xName: 'step', yName: 'loss'});
  const [a, b] = runs, la = smooth(a.losses), lb = smooth(b.losses);
  const less = a.answer.total === b.answer.total ? 'Both need the same bytes' : a.answer.total < b.answer.total ? `The first needs ${percent(1 - a.answer.total / b.answer.total)} fewer bytes` : `The second needs ${percent(1 - b.answer.total / a.answer.total)} fewer bytes`;
  say($('t-says'), () => la == null || lb == null ? 'A loss is not a number any more: numbers left the range of their format.' :
    `${less} at the peak of a step. Losses after ${a.losses.length} steps: ${short(la)} under ${a.strategy}, ${short(lb)} under ${b.strategy}` + (a.losses.length < 50 ? '. Press Start.' : Math.abs(la - lb) < 0.1 * Math.max(la, lb) + 0.002 ? ': they have learned equally well.' : la < lb ? `: <b>${b.strategy} has learned less</b>.` : `: <b>${a.strategy} has learned less</b>.`));
}
let size = 1;  // steps of a turn: as many as fit into 15 ms, so that the page stays quick
let waiting = [];  // parts of a turn that take longer: one at a time
function turn() {
  const began = performance.now();
  if (waiting.length) waiting.shift()();
  else {
    const left = 49 - runs[0].losses.length % 50;
    if (left > 0) for (const run of runs) run.go(Math.min(size, left));
    else waiting = [...runs.map(run => () => run.look()), ...runs.map(run => () => run.test()), () => runs[0].losses.length === compared && stop()];
    size = performance.now() - began < 12 ? size + 1 : Math.max(1, size - 1);
  }
  if (!running) showRuns();
  else if (began - (turn.shown || 0) > 100) turn.shown = began, waiting.push(showRuns);
  later();
}
function later() {
  clearTimeout(timer);
  if (running || waiting.length) timer = setTimeout(turn, 0);
}
function stop() {
  running = false;
  $('t-run').textContent = 'Go on';
}
function startAgain() {
  running = false;
  $('t-run').textContent = 'Start';
  waiting = [...runs.map(run => () => run.begin()), ...runs.map(run => () => run.test())];
  turn();
}
function startTraining(about) {
  runs.push(new Run(0, 'amp-fp16', about.strategies), new Run(1, 'full-bf16', about.strategies));
  fill($('t-bytes'), 'Bytes of a weight in a training with Adam. amp and o1 keep f32 weights, so they need as many bytes as fp32: they are for the speed of 16-bit products.', ['strategy', 'together', 'weights', 'masters, halves, lost bits', 'gradients', 'optimizer', 'how'],
    about.bytes.map(([name, ...bytes]) => [name, `<b>${short(bytes.pop())}</b>`, ...bytes.map(b => short(+b.toFixed(1))), whatItDoes[name]]));
  $('t-run').onclick = () => {
    if (running) return stop();
    running = true, $('t-run').textContent = 'Stop';
    later();
  };
  $('t-new').onclick = $('t-lr').oninput = startAgain;
  startAgain();
}

// --- 4. A policy

const example = `{"halftone_policy": 1, "name": "mine", "extends": "amp-bf16",
 "rules": [
  {"match": {"op": "linear", "path": "**"},
   "weight": "mxfp4", "input": "mxfp4", "grad_output": "e5m2",
   "compute": "f32", "result": "bf16"}
 ]}
`;
function showPolicy() {
  say($('p-says'), () => {
    $('p-tensors').innerHTML = $('p-table').textContent = '';
    const a = ask({do: 'policy', text: $('p-text').value});
    $('p-table').textContent = a.line + '\npolicy ' + a.hash + '\n\n' + a.table;
    const db = t => t.decibels.text === 'inf' ? 'exact' : short(t.decibels.value);
    fill($('p-tensors'), 'what each rounded tensor loses in the first step', ['tensor', 'format', 'became 0', 'too large', 'signal, dB'],
      a.tensors.map(t => [`${escaped(t.site)} ${t.role}`, escaped(t.format), percent(t.to_zero.value), percent(t.saturated.value), db(t)]));
    const worst = a.tensors.filter(t => t.decibels.value != null).sort((s, t) => s.decibels.value - t.decibels.value)[0];
    if (!worst) return 'This policy rounds no tensor.';
    return `The policy rounds <b>${a.tensors.length} tensors</b>. The one that loses most is ${escaped(worst.site)} ${worst.role}: its signal is ${db(worst)} dB above the noise, and ${percent(worst.to_zero.value)} of its numbers become 0.`;
  });
}
function startPolicy(about) {
  $('p-shipped').innerHTML = option('', 'an example') + about.policies.filter(p => !/"for"/.test(p.text) || /"for": *\[[^\]]*"mlp"/.test(p.text)).map(p => option(p.name)).join('');
  $('p-shipped').oninput = () => {
    const found = about.policies.find(p => p.name === $('p-shipped').value);
    $('p-text').value = found ? found.text : example;
    showPolicy();
  };
  let wait = null;
  $('p-text').oninput = () => (clearTimeout(wait), wait = setTimeout(showPolicy, 150));
  $('p-text').value = example;
  showPolicy();
}

// --- 5. A task

const pages = {rounding: 'examples/04_rounding.cpp and docs/number_formats.md', range: 'examples/03_formats.cpp and examples/06_bf16_or_fp16.cpp'};
function grade() {
  const out = $('k-says');
  try {
    const body = Function('bits', '"use strict";' + $('k-text').value + '\n');
    let thrown = null;
    const given = library.addFunction(bits => {
      try {
        return body(bits >>> 0) & 0xffff;
      } catch (error) {
        thrown ??= error;
        return -1;
      }
    }, 'ii');
    const {groups, verdict: v} = JSON.parse(library.ccall('halftone_grade', 'string', ['number'], [given]));
    library.removeFunction(given);
    const lines = groups.map(g => `${v && g === v.title ? 'FAILED' : 'ok    '}    ${g}`);
    if (v) lines.push('', `input     ${v.input}`, `expected  ${v.expected}`, `got       ${thrown ? 'an exception: ' + thrown.message : v.got}`, `why       ${v.why}`, `read      ${pages[v.topic]}`);
    else lines.push('', 'passed: this is the rounding of every cast in a training.');
    out.textContent = lines.join('\n');
    out.className = v ? '' : 'right';
  } catch (error) {
    out.textContent = 'This is not JavaScript: ' + error.message;
  }
}

// --- the start

function start() {
  const about = ask({do: 'about'});
  startNumber(about);
  startUpdate();
  startTraining(about);
  startPolicy(about);
  $('k-run').onclick = grade;
  onresize = () => (showNumber(true), showUpdate(), showRuns());
  $('state').textContent = 'Ready.';
  $('foot').textContent = `Kernels: ${about.kernels}. Memory of the library: ${short(library.wasmMemory.buffer.byteLength / 1048576)} MiB.`;
  document.documentElement.dataset.ready = 'yes';
}
if (typeof halftone === 'undefined') $('state').textContent = 'The library is missing: build the page with scripts/web.sh and open build/web/index.html.';
else halftone().then(made => (library = made, start())).catch(error => ($('state').textContent = 'The library does not start here: ' + error));
