"""Every key that ConfigManager of TorchServe 0.12.0 or its Python launcher (vmargs, plugins_path) looks up."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BOOLEANS = _words("""
    async_logging cpu_launcher_enable debug decode_input_request disable_system_metrics disable_token_authorization enable_envvars_config
    enable_grpc_ssl enable_metrics_api enable_model_api install_py_dep_per_model ipex_enable ipex_gpu_enable limit_max_image_pixels
    model_metrics_auto_detect prefer_direct_buffer ts_open_inference_protocol use_env_allowed_urls use_native_io
""")
INTEGERS = _words("""
    default_response_timeout default_startup_timeout default_workers_per_model grpc_inference_port grpc_management_port
    initial_distribution_port initial_worker_port io_ratio job_queue_size max_request_size max_response_size metric_time_interval
    netty_client_threads number_of_gpu number_of_netty_threads unregister_model_timeout
""")
KEYS = (
    BOOLEANS
    | INTEGERS
    | _words("""
    allowed_urls blacklist_env_vars certificate_file cors_allowed_headers cors_allowed_methods cors_allowed_origin cpp_log_config
    cpu_launcher_args default_service_handler grpc_inference_address grpc_inference_max_connection_age_grace_ms
    grpc_inference_max_connection_age_ms grpc_management_address grpc_management_max_connection_age_grace_ms
    grpc_management_max_connection_age_ms inference_address keystore keystore_pass keystore_type load_models management_address
    metrics_address metrics_config metrics_mode model_server_home model_snapshot model_store models plugins_path private_key_file python
    service_envelope system_metrics_cmd token_expiration_min tsConfigFile ts_header_key_sequence_end ts_header_key_sequence_id
    ts_header_key_sequence_start version vmargs workflow_store
""")
)
