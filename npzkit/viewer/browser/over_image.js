const {kind, unit, digits, rows, columns} = facts.tags[0]
const {row_step, column_step, row_start, column_start, at, down, across} = facts.tags[0]
TEXT_OF_VALUE
const i = Math.floor((cb_obj.y + 0.5 - row_start) / row_step)
const j = Math.floor((cb_obj.x + 0.5 - column_start) / column_step)
if (i < 0 || j < 0 || i >= rows || j >= columns) {
  out.text = "&nbsp;"
} else {
  const found = (source.data.value ?? source.data.image)[0]
  // A picture has several numbers per place.
  const count = found.length / (rows * columns)
  const values = []
  for (let k = 0; k < count; k++) values.push(text_of(found[(i * columns + j) * count + k]))
  const index = [...at]
  index[down] = row_start + i * row_step
  index[across] = column_start + j * column_step
  out.text = `[${index.join(", ")}]: <b>${values.join(", ")}</b>`
}
