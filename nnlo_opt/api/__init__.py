"""Trainings from one's own Python script, under the names that mpi_learn and NNLO gave them.

What belongs where:

    manager    MPIManager, MPIKFoldManager: a training, a cross validation on the ranks of a communicator
    algo       Algo: how it is trained
    data       Data, H5Data: on what
    model      ModelBuilder, ModelFromJson: which model
    recipe     these put together, for each rank
    team       the ranks and the loop that serves them
"""
