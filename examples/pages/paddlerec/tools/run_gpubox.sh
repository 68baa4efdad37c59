# PaddleRec's run_gpubox.sh: the command `shoal launch` of a config whose sync_mode is gpubox.
[ -n "$BASH_VERSION" ] || exec bash "$0" "$@"  # `sh` may be a shell without arrays

# No server is started, so its port has no effect.
export PADDLE_PSERVERS_IP_PORT_LIST="127.0.0.1:29011"
export PADDLE_PSERVER_PORT_ARRAY=(29011)

# A process for each GPU.
export FLAGS_selected_gpus="${FLAGS_selected_gpus-0,1,2,3,4,5,6,7}"

SC="tools/static_gpubox_trainer.py -m models/rank/dnn/config_gpubox.yaml"
exec python -m shoal launch $SC "$@"
