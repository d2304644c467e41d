#!/bin/sh
# Certificates for a SuperLink and a key pair for every SuperNode, with openssl and ssh-keygen.
#
#   deploy/make-credentials.sh FOLDER HOST NODE...
#
# HOST is the name or IPv4 address that SuperNodes and users reach the SuperLink by. Writes
#   FOLDER/ca.key, ca.crt             own certificate authority; ca.key stays off every server
#   FOLDER/superlink.key, .crt        for the SuperLink
#   FOLDER/NODE, NODE.pub             for a SuperNode; NODE.pub is registered with the SuperLink
# What exists is kept, so that later calls add nodes.
set -eu
umask 077

if [ $# -lt 2 ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
folder=$1 host=$2
shift 2
mkdir -p "$folder"
cd "$folder"

case $host in
*[!0-9.]*) name="DNS:$host" ;;
*) name="IP:$host" ;;
esac

if [ ! -e ca.crt ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -sha384 -days 3650 \
        -subj "/CN=fedsyn certificate authority" -keyout ca.key -out ca.crt \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" \
        -addext "keyUsage=critical,keyCertSign,cRLSign"
fi

if [ ! -e superlink.crt ]; then
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -sha384 \
        -subj "/CN=$host" -keyout superlink.key -out superlink.csr
    # localhost too: the SuperLink's own ServerApp processes connect to it on the same machine.
    cat >superlink.ext <<END
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = $name, DNS:localhost, IP:127.0.0.1
END
    openssl x509 -req -in superlink.csr -CA ca.crt -CAkey ca.key -CAcreateserial -sha384 \
        -days 365 -extfile superlink.ext -out superlink.crt
    rm superlink.csr superlink.ext
fi

for node; do
    [ -e "$node" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "$node" -f "$node"
done
