/*
 * The pause process of a pod sandbox: it keeps the pod's namespaces alive, reaps orphans as process 1 of a
 * shared PID namespace, and exits on a signal.
 *
 * All three signals stay blocked and are received with sigwaitinfo: no handler interrupts the program, and
 * the kernel keeps a blocked SIGTERM pending even for process 1, to which it does not deliver a SIGTERM
 * without a handler.
 *
 * With -v it exits at once, like the pause of Kubernetes, which prints its version: `kubeadm upgrade` runs it
 * with -v.
 */
#include <signal.h>
#include <sys/wait.h>

int main(int count, char **words)
{
    sigset_t awaited;

    if (count > 1 && words[1][0] == '-' && words[1][1] == 'v')
        return 0;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGINT);
    sigaddset(&awaited, SIGTERM);
    sigaddset(&awaited, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &awaited, 0) != 0)
        return 1;
    for (;;) {
        int number = sigwaitinfo(&awaited, 0);

        if (number == SIGINT || number == SIGTERM)
            return 0;
        if (number == SIGCHLD)
            while (waitpid(-1, 0, WNOHANG) > 0)
                ;
    }
}
