// Appends what a page in a frame looks like, as JSON, to the page around it: its width, what sticks out, contrasts.
for (const details of document.querySelectorAll("details")) details.open = true
function luminance([r, g, b]) {
  const linear = [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
}
const numbers = colour => colour.match(/[\d.]+/g).map(Number)
function background(element) {
  for (let at = element; at; at = at.parentElement) {
    const found = numbers(getComputedStyle(at).backgroundColor)
    if (found.length === 3 || found[3] > 0) return found
  }
  return [255, 255, 255]
}
function contrast(element) {
  const [a, b] = [numbers(getComputedStyle(element).color), background(element)].map(luminance).sort((x, y) => y - x)
  return (a + 0.05) / (b + 0.05)
}
const visible = [...document.body.querySelectorAll("*")].filter(e => e.getClientRects().length)
const texts = visible.filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
const wide = visible.filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 || e.scrollWidth > e.clientWidth + 1 && e.clientWidth && getComputedStyle(e).display !== "inline")
const measured = {
  width: innerWidth,
  page: document.documentElement.scrollWidth,
  sticking_out: wide.map(e => `${e.tagName} ${e.textContent.slice(0, 60)}`),
  low_contrast: texts.map(e => [contrast(e), e.textContent.slice(0, 60)]).filter(([ratio]) => ratio < 4.5),
  background: background(document.body),
}
const pre = document.createElement("pre")
pre.id = "measured"
pre.textContent = JSON.stringify(measured)
parent.document.body.append(pre)
