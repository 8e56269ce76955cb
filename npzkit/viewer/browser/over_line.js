const {kind, unit, digits, at, across} = facts.tags[0]
TEXT_OF_VALUE
const {left, right, low, high} = source.data
let a = 0, b = left.length - 1
while (a < b) {
  const middle = (a + b + 1) >> 1
  if (left[middle] <= cb_obj.x) a = middle; else b = middle - 1
}
if (!left.length || cb_obj.x < left[0] || cb_obj.x > right[right.length - 1]) {
  out.text = "&nbsp;"
} else {
  const first = Math.ceil(left[a]), last = Math.floor(right[a])
  const index = [...at]
  index[across] = last > first ? `${first} to ${last}` : `${first}`
  const is_one = low[a] === high[a] || Number.isNaN(low[a])
  const what = is_one ? text_of(low[a]) : `${text_of(low[a])} to ${text_of(high[a])}`
  out.text = `[${index.join(", ")}]: <b>${what}</b>`
}
