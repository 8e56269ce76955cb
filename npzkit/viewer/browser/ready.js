// The page follows the system's theme, also while it is open, and its window's size.
const system = matchMedia("(prefers-color-scheme: dark)")
const follow = () => { dark.active = system.matches }
follow()
system.addEventListener("change", follow)
new ResizeObserver(([{contentRect}]) => {
  // In a narrow window, keys need the room of sizes.
  const [key, shape, type, size] = table.columns, width = Math.floor(contentRect.width)
  const is_wide = width > 350
  type.width = is_wide ? 98 : 64
  key.width = width - shape.width - type.width - (is_wide ? size.width : 0)
}).observe(document.querySelector(".tree"))
new ResizeObserver(([{contentRect}]) => {
  panes.tags = [Math.round(contentRect.width), Math.round(contentRect.height)]
}).observe(document.querySelector(".panes"))
