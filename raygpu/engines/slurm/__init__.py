"""Slurm: the only package that calls sbatch, squeue, scontrol and scancel, and the Ray of a Slurm job.

`commands` calls Slurm's commands, `command_output` reads what they say, `batch_script` writes the script, `jobs` has
the jobs that were submitted, and `ray_nodes` starts Ray over the nodes of a job.
"""
