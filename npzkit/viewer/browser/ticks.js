const size = Math.abs(tick)
if (tick !== 0 && (size < 1e-4 || size >= 1e12)) {
  return tick.toExponential(3).replace(/\.?0+e/, "e")
}
return Number(tick.toPrecision(12)).toLocaleString("en", {maximumFractionDigits: 12})
