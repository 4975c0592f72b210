_llmsize() {
    local -a found
    found=("${(@f)$(llmsize completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -Q -a found; else _files; fi
}
compdef _llmsize llmsize
