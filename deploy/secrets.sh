#!/bin/sh
# New random secrets for deploy/compose.yaml, in a new file, or for Kubernetes, on the standard output. Once for each
# installation: the database and object storage keep to the first, so a file that exists is left as it is.
#
#   sh deploy/secrets.sh env deploy/.env
#   sh deploy/secrets.sh kubernetes | kubectl create -n raygpu -f -
#
# No secret is ever an argument of a process, which other users would see: printf is the shell's own.
set -eu

# hex BYTES: so many random bytes, two digits each.
hex() {
  digits=$(head -c "$1" /dev/urandom | od -An -v -tx1 | tr -d ' \n')
  if [ "${#digits}" -ne $(($1 * 2)) ]; then
    echo "secrets.sh: cannot read /dev/urandom" >&2
    exit 1
  fi
  printf '%s' "$digits"
}

# secret NAME KEY VALUE ...: a Secret of Kubernetes.
secret() {
  printf -- '---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\ntype: Opaque\nstringData:\n' "$1"
  shift
  while [ "$#" -gt 0 ]; do
    printf '  %s: "%s"\n' "$1" "$2"
    shift 2
  done
}

case "$#:${1-}" in
2:env | 1:kubernetes) ;;
*)
  echo "usage: sh deploy/secrets.sh env FILE | kubernetes" >&2
  exit 2
  ;;
esac

# A file is for its owner alone before anything is in it.
umask 077
if [ "$1" = env ]; then
  set -C # a redirection makes new files alone
  if ! (: > "$2") 2>/dev/null; then
    echo "secrets.sh: $2 exists, or cannot be written; its secrets are in use: delete it only with all of their data" >&2
    exit 2
  fi
  exec >> "$2"
elif [ -f /dev/stdout ]; then
  chmod 600 /dev/stdout
fi

ray_auth_token=$(hex 32)
redis_password=$(hex 32)
postgres_password=$(hex 32)
mlflow_admin_password=$(hex 32)
mlflow_user_password=$(hex 32)
mlflow_secret_key=$(hex 32)
storage_access_key=$(hex 10)
storage_secret_key=$(hex 32)

if [ "$1" = env ]; then
  printf 'RAY_AUTH_TOKEN=%s\n' "$ray_auth_token"
  printf 'POSTGRES_PASSWORD=%s\n' "$postgres_password"
  printf 'MLFLOW_ADMIN_PASSWORD=%s\n' "$mlflow_admin_password"
  printf 'MLFLOW_USER_PASSWORD=%s\n' "$mlflow_user_password"
  printf 'MLFLOW_SECRET_KEY=%s\n' "$mlflow_secret_key"
  printf 'STORAGE_ACCESS_KEY=%s\n' "$storage_access_key"
  printf 'STORAGE_SECRET_KEY=%s\n' "$storage_secret_key"
  printf 'REDIS_PASSWORD=%s\n' "$redis_password"
else
  secret raygpu-ray-token auth_token "$ray_auth_token"
  secret raygpu-redis password "$redis_password"
  secret raygpu-postgres password "$postgres_password"
  secret raygpu-mlflow admin-password "$mlflow_admin_password" user-password "$mlflow_user_password" \
    secret-key "$mlflow_secret_key"
  secret raygpu-storage access-key "$storage_access_key" secret-key "$storage_secret_key"
fi
