# Completes `python -m pipelines …`. In bash or zsh: source pipelines/completion.sh
# Typer's own --install-completion is for programs with a name; for a shell, the program here is `python`.

if [ -n "$ZSH_VERSION" ]; then
    autoload -Uz compinit bashcompinit
    compinit -D
    bashcompinit
fi

_pipelines_complete() {
    [ "${COMP_WORDS[1]} ${COMP_WORDS[2]}" = "-m pipelines" ] || return
    local IFS=$'\n'
    COMPREPLY=($(env _PIPELINES_COMPLETE=complete_bash COMP_CWORD=$((COMP_CWORD - 2)) \
        COMP_WORDS="pipelines$IFS${COMP_WORDS[*]:3}" "${COMP_WORDS[0]}" -m pipelines))
}

# Complete file names where the function has no completions.
complete -o default -F _pipelines_complete python
