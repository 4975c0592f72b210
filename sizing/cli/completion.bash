_llmsize() {
    local IFS=$'\n'
    COMPREPLY=($(llmsize completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _llmsize llmsize
