// An end of the colours beyond which there are values has a sign.
const sign = tick === below ? "\u2264 " : tick === above ? "\u2265 " : ""
const size = Math.abs(tick)
if (tick !== 0 && (size < 1e-4 || size >= 1e12)) {
  return sign + tick.toExponential(3).replace(/\.?0+e/, "e")
}
const shown = Number(tick.toPrecision(sign ? 4 : 12))
return sign + shown.toLocaleString("en", {maximumFractionDigits: 12})
