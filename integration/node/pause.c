/*
 * The first program of a pod sandbox: it keeps the pod's namespaces alive, collects the exit status of
 * processes whose parent is gone (it is process 1 of a shared PID namespace), and ends when asked to.
 *
 * All three signals stay blocked and are taken one after the other with sigwaitinfo: no handler runs at an
 * unexpected moment, and the kernel keeps a blocked SIGTERM pending even for process 1, which it would
 * otherwise never deliver without a handler.
 *
 * With -v it ends at once, as the one of Kubernetes does, which prints its version: `kubeadm upgrade` runs it so.
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
