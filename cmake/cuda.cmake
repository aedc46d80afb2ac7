# Target redlite_cuda: libredlite_cuda.so beside the program, compiled by nvcc without making CUDA a language of the project.
# Machine code for compute capability 8.0 and 9.0a, and PTX of 8.0 for what comes between and after.
find_program(REDLITE_NVCC nvcc HINTS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin DOC "CUDA compiler of the GPU backend")
set(REDLITE_CUDA_ARCHITECTURES "80;90a" CACHE STRING "Compute capabilities to make machine code for")

if(REDLITE_NVCC)
    file(GLOB REDLITE_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cuda/*.cu)
    file(GLOB REDLITE_CUDA_HEADERS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cuda/*.cuh
        ${PROJECT_SOURCE_DIR}/src/backend/cuda/*.h ${PROJECT_SOURCE_DIR}/src/backend/*.h ${PROJECT_SOURCE_DIR}/src/model/model.h
        ${PROJECT_SOURCE_DIR}/src/gguf/gguf.h ${PROJECT_SOURCE_DIR}/src/quant/quant.h ${PROJECT_SOURCE_DIR}/include/redlite.h)
    set(flags -std=c++17 -O3 -lineinfo -Xcompiler=-fPIC,-fvisibility=hidden,-Wall
        -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src)
    foreach(arch IN LISTS REDLITE_CUDA_ARCHITECTURES)
        list(APPEND flags -gencode=arch=compute_${arch},code=sm_${arch})
    endforeach()
    if("80" IN_LIST REDLITE_CUDA_ARCHITECTURES)
        list(APPEND flags -gencode=arch=compute_80,code=compute_80)
    endif()
    set(objects)
    foreach(source IN LISTS REDLITE_CUDA_SOURCES)
        get_filename_component(name ${source} NAME_WE)
        set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
        add_custom_command(OUTPUT ${object}
            COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/cuda
            COMMAND ${REDLITE_NVCC} ${flags} -c ${source} -o ${object}
            DEPENDS ${source} ${REDLITE_CUDA_HEADERS} COMMENT "nvcc ${name}.cu" VERBATIM)
        list(APPEND objects ${object})
    endforeach()
    add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/libredlite_cuda.so
        COMMAND ${REDLITE_NVCC} -shared -cudart static ${objects} -o ${PROJECT_BINARY_DIR}/libredlite_cuda.so
            -Xlinker=--no-undefined -lpthread -ldl
        DEPENDS ${objects} COMMENT "libredlite_cuda.so" VERBATIM)
    add_custom_target(redlite_cuda DEPENDS ${PROJECT_BINARY_DIR}/libredlite_cuda.so)
endif()
