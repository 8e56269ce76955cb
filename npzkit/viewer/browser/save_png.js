// All figures that can be seen, as one picture, with what they show above.
const figures = []
function collect(view) {
  if (view.model.type == "Figure") figures.push(view)
  for (const child of view.child_views ?? []) collect(child)
}
for (const view of Bokeh.index.roots) collect(view)
const box_of = (view) => view.el.getBoundingClientRect()
const shown = figures.filter((view) => box_of(view).width > 0)
if (shown.length) {
  const layers = shown.map((view) => view.export("auto", false).canvas)
  const boxes = shown.map(box_of)
  const left = Math.min(...boxes.map((box) => box.left))
  const top = Math.min(...boxes.map((box) => box.top))
  const ratio = layers[0].width / boxes[0].width
  const whole = document.createElement("canvas")
  whole.width = Math.ceil((Math.max(...boxes.map((box) => box.right)) - left) * ratio)
  const head = Math.ceil(28 * ratio)
  whole.height = head + Math.ceil((Math.max(...boxes.map((box) => box.bottom)) - top) * ratio)
  const context = whole.getContext("2d")
  const style = getComputedStyle(document.documentElement)
  context.fillStyle = style.getPropertyValue("--panel")
  context.fillRect(0, 0, whole.width, whole.height)
  context.fillStyle = style.getPropertyValue("--ink")
  context.font = `${14 * ratio}px system-ui, sans-serif`
  context.textBaseline = "middle"
  context.fillText(name.tags[1], 8 * ratio, head / 2, whole.width - 16 * ratio)
  layers.forEach((layer, i) => {
    context.drawImage(layer, (boxes[i].left - left) * ratio, head + (boxes[i].top - top) * ratio)
  })
  whole.toBlob((blob) => {
    const link = document.createElement("a")
    link.href = URL.createObjectURL(blob)
    link.download = name.tags[0]
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 10000)
  })
}
