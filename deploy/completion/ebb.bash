# bash completion for ebb, made by 'ebb completion bash'
_ebb()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} options= operand=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "help --help --version run check submit jobs status why watch errors results pause resume cancel retry rm workers nodes drain top model doctor keygen invite join keys " -- "$cur"))
        return
    fi
    [ "$command" = model ] && command="model ${COMP_WORDS[2]}"
    if [ "${COMP_WORDS[1]}" = model ] && [ "$COMP_CWORD" -eq 2 ]; then
        COMPREPLY=($(compgen -W "inspect bench test plan" -- "$cur"))
        return
    fi
    [ "$command" = keys ] && command="keys ${COMP_WORDS[2]}"
    if [ "${COMP_WORDS[1]}" = keys ] && [ "$COMP_CWORD" -eq 2 ]; then
        COMPREPLY=($(compgen -W "list add revoke" -- "$cur"))
        return
    fi
    case $prev in
    --model|--input|--output|--socket|--key-file) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    --precision) COMPREPLY=($(compgen -W "auto f32 bf16 int8" -- "$cur")); return ;;
    --task) COMPREPLY=($(compgen -W "auto embed classify token-classify fill-mask outputs" -- "$cur")); return ;;
    --format) COMPREPLY=($(compgen -W "jsonl csv tsv lines images npy" -- "$cur")); return ;;
    --output-format) COMPREPLY=($(compgen -W "jsonl npy" -- "$cur")); return ;;
    --floats) COMPREPLY=($(compgen -W "array base64" -- "$cur")); return ;;
    --on-long) COMPREPLY=($(compgen -W "truncate error" -- "$cur")); return ;;
    esac
    case $command in
    "run") options="--help --name --model --step --precision --task --top-k --input --format --field --pair-field --id --keep --limit --max-record --on-long --output --output-format --floats --part-bytes --max-errors --weight --priority --min-workers --max-workers --preemptible --stages --deadline --lease --commit --stall --micro-batch --micro-batch-tokens --workers --lanes --memory --retry --force --quiet --json" operand=file ;;
    "check") options="--help --name --model --step --precision --task --top-k --input --format --field --pair-field --id --keep --limit --max-record --on-long --output --output-format --floats --part-bytes --max-errors --weight --priority --min-workers --max-workers --preemptible --stages --deadline --lease --commit --stall --micro-batch --micro-batch-tokens --force --json" operand=file ;;
    "submit") options="--help --name --model --step --precision --task --top-k --input --format --field --pair-field --id --keep --limit --max-record --on-long --output --output-format --floats --part-bytes --max-errors --weight --priority --min-workers --max-workers --preemptible --stages --deadline --lease --commit --stall --micro-batch --micro-batch-tokens --force --socket --daemon --key-file --json" operand=file ;;
    "jobs") options="--help --all --json --socket --daemon --key-file" operand=none ;;
    "status") options="--help --json --socket --daemon --key-file" operand=job ;;
    "why") options="--help --json --socket --daemon --key-file" operand=job ;;
    "watch") options="--help --json --socket --daemon --key-file" operand=job ;;
    "errors") options="--help --limit --code --json --socket --daemon --key-file" operand=job ;;
    "results") options="--help --cat --json --socket --daemon --key-file" operand=job ;;
    "pause") options="--help --json --socket --daemon --key-file" operand=job ;;
    "resume") options="--help --max-errors --json --socket --daemon --key-file" operand=job ;;
    "cancel") options="--help --json --socket --daemon --key-file" operand=job ;;
    "retry") options="--help --json --socket --daemon --key-file" operand=job ;;
    "rm") options="--help --force --json --socket --daemon --key-file" operand=job ;;
    "workers") options="--help --json --socket --daemon --key-file" operand=none ;;
    "nodes") options="--help --json --socket --daemon --key-file" operand=none ;;
    "drain") options="--help --all --stay --json --socket --daemon --key-file" operand=none ;;
    "top") options="--help --interval --sort --nodes --once --json --socket --daemon --key-file" operand=none ;;
    "model inspect") options="--help --task --precision --json" operand=file ;;
    "model bench") options="--help --lanes --seconds --size --precision --task --json" operand=file ;;
    "model test") options="--help --constants --symbolic --plain --isa --all --tolerance --json" operand=file ;;
    "model plan") options="--help --workers --memory --device --link --lanes --precision --task --instance --json" operand=file ;;
    "doctor") options="--help --json --socket --daemon --key-file" operand=none ;;
    "keygen") options="--help --state --force --json" operand=none ;;
    "invite") options="--help --node --client --name --valid --address --json --socket --daemon --key-file" operand=none ;;
    "join") options="--help --key --name --key-file --force --json" operand=none ;;
    "keys list") options="--help --json --socket --daemon --key-file" operand=none ;;
    "keys add") options="--help --node --client --name --json --socket --daemon --key-file" operand=none ;;
    "keys revoke") options="--help --json --socket --daemon --key-file" operand=none ;;
    completion) operand=shell ;;
    help) operand=command ;;
    esac
    case $cur in
    -*) COMPREPLY=($(compgen -W "$options" -- "$cur")); return ;;
    esac
    case $operand in
    file) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    job) COMPREPLY=($(compgen -W "$(ebb jobs --all --json 2>/dev/null | sed -n 's/^{"job":\([0-9]*\),.*/\1/p')" -- "$cur")) ;;
    shell) COMPREPLY=($(compgen -W "bash zsh" -- "$cur")) ;;
    command) COMPREPLY=($(compgen -W "run check submit jobs status why watch errors results pause resume cancel retry rm workers nodes drain top model doctor keygen invite join keys " -- "$cur")) ;;
    esac
}
complete -o filenames -F _ebb ebb
