const UNITS = {D: 864e5, h: 36e5, m: 6e4, s: 1e3, ms: 1, us: 1e-3, ns: 1e-6}

function date_of(value) {
  const date = new Date(value * UNITS[unit])
  if (Number.isNaN(date.getTime())) return null
  const text = date.toISOString().slice(0, unit == "D" ? 10 : -1).replace("T", " ")
  // JavaScript's dates have milliseconds.
  const rest = unit == "us" ? String(((value % 1000) + 1000) % 1000).padStart(3, "0") : ""
  return (text + rest).replace(/\.0+$/, "")
}

function text_of(value) {
  if (value === undefined) return ""
  if (Number.isNaN(value)) return kind == "M" ? "NaT" : "NaN"
  if (kind == "M" && unit in UNITS && date_of(value) != null) return date_of(value)
  if (kind == "b") return value ? "True" : "False"
  const text = digits < 17 ? String(Number(value.toPrecision(digits))) : String(value)
  const about = Number.isInteger(value) && Math.abs(value) > 2 ** 53 ? "about " : ""
  return about + text + (unit ? " " + unit : "")
}
