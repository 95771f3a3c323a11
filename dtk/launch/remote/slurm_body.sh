# Exit codes of ranks that stopped on request, with a checkpoint: 128 + the number of the signal.
stopped() { [[ $1 -eq 138 || $1 -eq 143 ]]; }

newest() {
  local found=("$run"/checkpoints/step_*/checkpoint.json)
  printf '%s\n' "${found[-1]}"
}

# Slurm sends USR1 before the time limit or a preemption: pass it on to the ranks.
asked='' ended='' ranks='' heard=''
trap 'heard=yes asked=yes; [[ -z $ranks ]] || kill -USR1 "$ranks"' USR1
# scancel, or a requeue by Slurm itself: Slurm has already signalled the ranks.
trap 'heard=yes ended=yes' TERM

before="$(newest)"
code=143
while [[ -z $asked && -z $ended ]]; do
  "${command[@]}" &
  ranks=$!
  while :; do
    heard=''
    wait "$ranks"
    code=$?
    [[ -n $heard ]] || break
  done
  ranks=''
  if [[ $code -eq 0 || $code -eq 2 || $restarts -eq 0 ]] || stopped "$code"; then
    break
  fi
  restarts=$((restarts - 1))
  echo "dtk: the job failed with exit code $code; it starts again from the last checkpoint"
done

if stopped "$code" && [[ -z $ended && -n $requeue ]]; then
  if [[ "$(newest)" == "$before" ]]; then
    echo 'dtk: stopped without a new checkpoint; not requeued, as it would begin at the same step again'
  else
    echo 'dtk: stopped with a checkpoint; requeued'
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit "$code"
