// Goes through the positions of an axis: to each when the one before is shown.
if (cb_obj.active) {
  const timer = setInterval(() => {
    if (!cb_obj.active || !cb_obj.document) clearInterval(timer)
    else if (!status.text.includes("wait")) slider.value = (slider.value + 1) % (slider.end + 1)
  }, 120)
}
