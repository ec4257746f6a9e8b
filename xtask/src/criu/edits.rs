//! What Isopod changes in CRIU. A release in which an anchor is missing, or is there twice, does not build.
//!
//! CRIU runs as root on a sandbox whose processes and files are hostile, in the sandbox's namespaces. So it must not run or load
//! anything that it finds in a file system.

use super::edit::Change::{After, Before, Instead};
use super::edit::Edit;

const CONFIG: &str = "criu/config.c";
const DUMP: &str = "criu/cr-dump.c";
const KERNEL_DATA: &str = "criu/kerndat.c";
const SEIZE: &str = "criu/seize.c";

pub(super) const EDITS: &[Edit] = &[
    Edit {
        file: "criu/include/cr_options.h",
        why: "the value of --adopt-children-of",
        anchor: "int allow_uprobes;",
        change: After("\tpid_t adopt_children_of;\n"),
    },
    Edit {
        file: "criu/crtools.c",
        why: "the help names --adopt-children-of",
        anchor: "\"  --unprivileged  ",
        change: After(
            r#"	       "  --adopt-children-of PID\n"
	       "                        dump the children of PID as children of the root\n"
"#,
        ),
    },
    Edit {
        file: CONFIG,
        why: "the option --adopt-children-of",
        anchor: "\"lsm-mount-context\"",
        change: After("\t\t{ \"adopt-children-of\", required_argument, 0, 1200 },\n"),
    },
    Edit {
        file: CONFIG,
        why: "reads the value of --adopt-children-of",
        anchor: "case 1099:",
        change: Before(
            r#"		case 1200:
			opts.adopt_children_of = atoi(optarg);
			if (opts.adopt_children_of <= 0) {
				pr_err("Invalid argument of --adopt-children-of: %s\n", optarg);
				return 1;
			}
			break;
"#,
        ),
    },
    Edit {
        file: CONFIG,
        why: "the node uses only a CRIU that says that it has these changes",
        anchor: r#""Version: %s\n""#,
        change: Instead(r#""Version: %s, adapted for isopod (2)\n""#),
    },
    Edit {
        file: SEIZE,
        why: "the processes of a sandbox have no common parent but the guest, which is not dumped",
        anchor: "static int collect_task(struct pstree_item *item);",
        change: After(
            r#"/*
 * With --adopt-children-of, the root of the dump also takes in the children of another task,
 * which is not dumped itself.
 */
static bool adopts(const struct pstree_item *item)
{
	return opts.adopt_children_of && item == root_item;
}

static int collect_children_of(struct pstree_item *item, pid_t parent);

"#,
        ),
    },
    Edit {
        file: SEIZE,
        why: "the function that collects a task's own children becomes one for the children of any task",
        anchor: "static int collect_children(struct pstree_item *item)",
        change: After(
            r#"{
	int own, adopted = 0;

	own = collect_children_of(item, item->pid->real);
	if (own >= 0 && adopts(item)) {
		adopted = collect_children_of(item, opts.adopt_children_of);
		if (adopted < 0)
			return adopted;
	}
	return own < 0 ? own : own + adopted;
}

static int collect_children_of(struct pstree_item *item, pid_t parent)
"#,
        ),
    },
    Edit {
        file: SEIZE,
        why: "lists the children of that task",
        anchor: "parse_children(item->pid->real,",
        change: Instead("parse_children(parent,"),
    },
    Edit {
        file: SEIZE,
        why: "the root of the dump is a child of the guest too, and not its own child",
        anchor: "if (child_collected(item, pid))",
        change: Instead("if (pid == root_item->pid->real || child_collected(item, pid))"),
    },
    Edit {
        file: SEIZE,
        why: "the parent that the kernel reports for an adopted task is the other one",
        anchor: "compel_wait_task(pid, item->pid->real, parse_pid_status, NULL, &creds.s, NULL)",
        change: Instead("compel_wait_task(pid, parent, parse_pid_status, NULL, &creds.s, NULL)"),
    },
    Edit {
        file: SEIZE,
        why: "so it is not compared for children of the root",
        anchor: "return item ? item->pid->real : -1;",
        change: Instead(
            r#"/* An adopted task has another parent. */
	return item && !adopts(item) ? item->pid->real : -1;"#,
        ),
    },
    Edit {
        file: DUMP,
        why: "the limits of another user's tasks, without a capability that root may lack",
        anchor: "static int dump_task_rlimits(",
        change: Before(
            r#"static rlim_t parse_rlim(const char *text)
{
	return strncmp(text, "unlimited", 9) ? strtoull(text, NULL, 10) : RLIM_INFINITY;
}

/*
 * Reading the limits of a task of another user takes CAP_SYS_RESOURCE, which root may lack.
 * The file shows them to everybody: a name of 26 columns, then two values of 21 columns each.
 */
static int parse_task_rlimits(int pid, struct rlimit64 *limits, int nr)
{
	char line[256];
	FILE *f;
	int res;

	f = fopen_proc(pid, "limits");
	if (!f)
		return -1;
	/* The first line has the titles. */
	for (res = -1; res < nr && fgets(line, sizeof(line), f); res++) {
		if (res < 0)
			continue;
		if (strlen(line) < 48)
			break;
		limits[res].rlim_cur = parse_rlim(line + 26);
		limits[res].rlim_max = parse_rlim(line + 47);
	}
	fclose(f);
	return res == nr ? 0 : -1;
}

"#,
        ),
    },
    Edit {
        file: DUMP,
        why: "reads the limits that the file shows",
        anchor: "TaskRlimitsEntry *rls)\n{",
        change: After(
            r#"	struct rlimit64 shown[RLIM_NLIMITS];
	bool is_shown = rls->n_rlimits <= RLIM_NLIMITS && !parse_task_rlimits(pid, shown, rls->n_rlimits);
"#,
        ),
    },
    Edit {
        file: DUMP,
        why: "asks the kernel only if the file could not be read",
        anchor: "if (syscall(__NR_prlimit64, pid, res, NULL, &lim)) {",
        change: Instead(
            r#"if (is_shown) {
			lim = shown[res];
		} else if (syscall(__NR_prlimit64, pid, res, NULL, &lim)) {"#,
        ),
    },
    Edit {
        file: KERNEL_DATA,
        why: "does not run the shell and the iptables of the sandbox to see what they can do",
        anchor: "kdat.has_xtlocks = 1;",
        change: Before(
            r#"	/* Runs a program of a file system that is not trusted. */
	kdat.has_xtlocks = 0;
	close_safe(&fd);
	return 0;

"#,
        ),
    },
    Edit {
        file: KERNEL_DATA,
        why: "does not believe a file of the sandbox about the kernel",
        anchor: "get_kerndat_filename(char **kdat_file)\n{\n\tint ret;",
        change: After(
            r#"	const char *trusted = getenv("CRIU_KERNDAT_DIR");

	/*
	 * The file system may be that of the tasks, which are not trusted. So only a
	 * directory that the caller names holds the cache.
	 */
	if (!trusted)
		return 1;
	ret = asprintf(kdat_file, "%s/%s", trusted, KERNDAT_CACHE_NAME);
	if (ret < 0)
		return -1;
	return 0;
"#,
        ),
    },
    Edit {
        file: KERNEL_DATA,
        why: "mounts nothing in the sandbox to see whether that works; where the sandbox's /tmp is not a tmpfs, it can't",
        anchor: "char tmpdir[] = \"/tmp/.criu.move_mount_set_group.XXXXXX\";\n\tchar subdir[64];\n\tint exit_code = -1;",
        change: After(
            r#"
	/* Only mounts are restored with it, and none are saved here. */
	kdat.has_move_mount_set_group = false;
	if (1)
		return 0;
"#,
        ),
    },
    Edit {
        file: KERNEL_DATA,
        why: "does not run the iptables of the sandbox to load modules of the kernel",
        anchor: "preload_socket_modules();\n\tif (!opts.unprivileged)",
        change: Instead("preload_socket_modules();\n\tif (0)"),
    },
    Edit {
        file: "criu/plugin.c",
        why: "does not load libraries of the sandbox; only a directory that the caller names has plugins",
        anchor: "if (opts.libdir == NULL) {",
        change: Before(
            r#"	/* The file system may be that of the tasks, which are not trusted. */
	if (opts.libdir == NULL)
		return 0;

"#,
        ),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_lines_are_whole_and_every_edit_has_a_reason() {
        for Edit { file, why, anchor, change } in EDITS {
            assert!(!why.is_empty() && !why.contains('\n'), "{file}: {anchor}");
            let (Before(text) | After(text)) = change else { continue };
            assert!(text.ends_with('\n'), "{file}: {anchor}");
        }
    }
}
