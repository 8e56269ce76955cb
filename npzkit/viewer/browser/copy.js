// The command that shows the same, to be pasted.
const say = (text) => { button.label = text }
if (navigator.clipboard) {
  navigator.clipboard.writeText(button.tags[0]).then(() => say("Copied"), () => say("Copy it by hand"))
} else {
  say("Copy it by hand")
}
