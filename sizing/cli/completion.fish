function __llmsize_words
    set -l before (commandline -opc) (commandline -ct)
    llmsize completion words -- $before[2..-1] 2>/dev/null
end
complete -c llmsize -a '(__llmsize_words)'
